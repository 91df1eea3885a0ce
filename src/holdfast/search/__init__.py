"""One language for finding jobs, the same wherever people search: `state:dead error:Timeout args.user:42 age:>1h`.

`parse` makes a `Search` of a text, `plan` splits it into what engines do by themselves and a rest, `scan` applies both.
"""

from holdfast.search.matching import matches as matches
from holdfast.search.parsing import parse as parse
from holdfast.search.planning import Plan as Plan, plan as plan
from holdfast.search.scanning import ScanResult as ScanResult, scan as scan, walk as walk
from holdfast.search.terms import Search as Search
