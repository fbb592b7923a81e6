"""All methods. Read this first."""

from supervisor.routes import (
    approvals,
    archives,
    backups,
    cache,
    claims,
    debugging,
    events,
    exporting,
    forgetting,
    index,
    jobs,
    poison,
    restoring,
    search,
    sessions,
    sources,
    system,
    units,
)
from supervisor.routes.routing import Method

SUBJECTS = (
    system,
    poison,
    sessions,
    claims,
    approvals,
    events,
    units,
    jobs,
    search,
    forgetting,
    sources,
    index,
    cache,
    archives,
    restoring,
    backups,
    exporting,
    debugging,
)
METHODS: dict[str, Method] = {name: method for subject in SUBJECTS for name, method in subject.METHODS.items()}
