"""Tasks in a module that nobody would look into, and for a backend of another kind."""

from django_tasks import task


@task(backend="immediate")
def wander(steps: int) -> int:
    return steps
