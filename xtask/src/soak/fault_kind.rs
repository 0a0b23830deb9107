//! [`FaultKind`]: the faults that a soak can inject.

use anyhow::{Result, bail};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// SIGKILL to one worker.
    Kill,
    /// SIGSTOP to one worker, and SIGCONT when it counts as lost.
    Stop,
    /// SIGKILL to two workers, at once or one shortly after the other.
    Two,
    /// SIGKILL to half of the workers at once.
    Half,
    /// SIGKILL to the coordinator.
    Coordinator,
    /// SIGKILL to the coordinator, then to a worker while no coordinator runs.
    Leaderless,
    /// The cable between two hosts is cut, and repaired when the disconnected workers count as lost.
    Cut,
    /// The cable is cut in one direction.
    OneWay,
}

impl FaultKind {
    pub(super) const ALL: [Self; 8] = [
        Self::Kill,
        Self::Stop,
        Self::Two,
        Self::Half,
        Self::Coordinator,
        Self::Leaderless,
        Self::Cut,
        Self::OneWay,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Two => "two",
            Self::Half => "half",
            Self::Coordinator => "coordinator",
            Self::Leaderless => "leaderless",
            Self::Cut => "cut",
            Self::OneWay => "one-way",
        }
    }

    /// Returns whether the fault cuts a cable.
    pub(super) fn cuts(self) -> bool {
        matches!(self, Self::Cut | Self::OneWay)
    }

    /// Returns whether the fault kills the coordinator.
    pub(super) fn kills_coordinator(self) -> bool {
        matches!(self, Self::Coordinator | Self::Leaderless)
    }

    /// Parses a comma-separated list of kinds.
    pub(super) fn list(text: &str) -> Result<Vec<Self>> {
        let one = |name: &str| match Self::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Ok(kind),
            None => bail!(
                "invalid value `{name}` for --faults: expected one of {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        };
        text.split(',').map(one).collect()
    }

    /// Returns the number of victims.
    pub(super) fn victims(self, workers: u32) -> usize {
        match self {
            Self::Kill | Self::Stop | Self::Leaderless => 1,
            Self::Two => 2,
            Self::Coordinator | Self::Cut | Self::OneWay => 0,
            Self::Half => workers as usize / 2,
        }
    }
}
