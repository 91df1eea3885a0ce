"""The search language: `state:dead error:Timeout args.user:42 age:>1h`.

`parse` turns a text into a `Search`. `plan` splits it into conditions for the engine and a rest. `scan` applies both.
"""

from holdfast.search.matching import matches as matches
from holdfast.search.parsing import parse as parse
from holdfast.search.planning import Plan as Plan, plan as plan
from holdfast.search.scanning import ScanResult as ScanResult, scan as scan, walk as walk
from holdfast.search.terms import Search as Search
