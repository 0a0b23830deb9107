//! [`JobLayout`]: the layout of a job: its launcher alone, with a separate coordinator, or on two hosts.

use super::fault_kind::FaultKind;

/// The layout of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobLayout {
    /// One launcher, which is also the coordinator.
    Here,
    /// A separate coordinator process.
    Open,
    /// A separate coordinator, and half of the workers on another host: two network namespaces and a cable.
    TwoHosts,
}

impl JobLayout {
    const ALL: [Self; 3] = [Self::Here, Self::Open, Self::TwoHosts];

    /// Returns the simplest layout of a job in which a fault can occur.
    pub(super) fn for_fault(kind: FaultKind) -> Self {
        match kind {
            FaultKind::Kill | FaultKind::Stop | FaultKind::Two | FaultKind::Half => Self::Here,
            FaultKind::Coordinator | FaultKind::Leaderless => Self::Open,
            FaultKind::Cut | FaultKind::OneWay => Self::TwoHosts,
        }
    }

    /// Returns the layouts that some kinds of faults need.
    pub(super) fn needed(kinds: &[FaultKind]) -> Vec<Self> {
        let is_needed = |layout: &Self| kinds.iter().any(|kind| Self::for_fault(*kind) == *layout);
        Self::ALL.into_iter().filter(is_needed).collect()
    }

    /// Returns the kinds of faults for a job with this layout: those that need it, and in addition kills of workers if
    /// there is more than a launcher, and of the coordinator if there are two hosts.
    pub(super) fn kinds(self, asked: &[FaultKind]) -> Vec<FaultKind> {
        let takes = |kind: &FaultKind| match self {
            Self::Here => false,
            Self::Open => *kind == FaultKind::Kill,
            Self::TwoHosts => matches!(kind, FaultKind::Kill | FaultKind::Coordinator),
        };
        let asked = asked.iter().copied();
        asked
            .filter(|k| Self::for_fault(*k) == self || takes(k))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fault_has_a_layout() {
        let layouts = JobLayout::needed(&FaultKind::ALL);
        assert_eq!(layouts, JobLayout::ALL);
        for kind in FaultKind::ALL {
            let [layout] = JobLayout::needed(&[kind])[..] else {
                panic!("{kind:?}");
            };
            assert_eq!(layout.kinds(&[kind]), [kind]);
        }
        let mixed = JobLayout::TwoHosts.kinds(&FaultKind::ALL);
        assert!(mixed.contains(&FaultKind::Kill) && mixed.contains(&FaultKind::Cut));
        assert!(
            !JobLayout::Here
                .kinds(&FaultKind::ALL)
                .contains(&FaultKind::Coordinator)
        );
    }
}
