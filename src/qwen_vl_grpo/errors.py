"""One root error and one class for each boundary that can fail.

The library raises these with a message that says what is wrong, where, and what to do. The command line turns
them into one line and exit code 1. Anything else that escapes is a fault of ours and keeps its traceback.
"""


class GrpoError(Exception):
    """The root of every error that a user can do something about."""


class ConfigError(GrpoError):
    """The run config, or a flag that changes it, cannot be used as written."""


class DataError(GrpoError):
    """A row, a picture or a whole data set cannot be trained on."""


class RewardError(GrpoError):
    """A reward function cannot be found, or broke its contract."""


class RenderError(GrpoError):
    """A picture cannot be drawn, or what was drawn is none."""


class JudgeError(GrpoError):
    """A picture cannot be judged; `passing` if the same may work later."""

    def __init__(self, message: str, passing: bool = False):
        super().__init__(message)
        self.passing = passing


class BudgetError(GrpoError):
    """What a run may spend on its judge is spent. No JudgeError: it is about the run and not about a picture."""


class PolicyError(GrpoError):
    """A model, its processor or its adapter cannot be loaded as asked."""


class RolloutError(GrpoError):
    """The rollouts are not the policy's own, so training on them would be wrong."""


class DivergenceError(GrpoError):
    """Training left the numbers: a gradient is infinite or not a number."""


class AlarmError(GrpoError):
    """An alarm rang that the config lets end a run."""


class EngineError(GrpoError):
    """vLLM broke down, at its start or in the middle of a run."""


class HardwareError(GrpoError):
    """This machine lacks something that the run needs."""


class RankError(GrpoError):
    """A process of a run on several devices is gone, late, or of another run."""


class RegistryError(GrpoError):
    """A run_id names no run, a broken one, or one that must not be replaced."""


class TrackingError(GrpoError):
    """An experiment tracker that was asked for could not be started."""


class HubError(GrpoError):
    """The Hub refused something or could not be reached; `passing` if the same may work later."""

    def __init__(self, message: str, passing: bool = False):
        super().__init__(message)
        self.passing = passing


def briefly(said: object) -> str:
    """What another library said, on one line and short enough for a sentence of ours."""
    return " ".join(str(said).split())[:200]
