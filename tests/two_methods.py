"""A storage with only the two methods that every storage has."""

from jqueue.domain.errors import CASConflictError


class TwoMethods:
    """The smallest storage of a user's own: it has no store time, and sends the whole object at every read."""

    def __init__(self):
        self.content, self.version = b"", 0

    async def read(self):
        return self.content, f"v{self.version}" if self.version else None

    async def write(self, content, if_match=None):
        if if_match != (await self.read())[1]:
            raise CASConflictError("not the version that you read")
        self.content, self.version = content, self.version + 1
        return f"v{self.version}"
