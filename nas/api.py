"""What a person's own code uses: `import nas`, then `nas.Run`."""

from dataclasses import dataclass
from typing import Any

from nas.results import run_files


@dataclass(frozen=True)
class Run(run_files.Run):
    """A run folder read back, `Run.load(folder)`, that draws its pictures."""

    def draw(self, picture: str, axes: Any = None) -> Any:
        """Draw a picture by name (`nas.pictures.plots.PICTURES` lists them) on `axes`, or on a new figure; returns the
        figure."""
        from nas.pictures.plots import draw  # matplotlib is loaded only by those who draw

        return draw(self, picture, axes)
