//! [`JobLayout`]: how a job is laid out: by its launcher alone, with a coordinator of its own, or on two hosts.

use super::faults::FaultKind;

/// How a job is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobLayout {
    /// One launcher, which is the coordinator too.
    Here,
    /// Its coordinator is a process of its own.
    Open,
    /// The same, with half of the workers on another host: two network namespaces and a cable.
    TwoHosts,
}

impl JobLayout {
    const ALL: [Self; 3] = [Self::Here, Self::Open, Self::TwoHosts];

    /// Those that are needed for some kinds of faults.
    pub(super) fn needed(kinds: &[FaultKind]) -> Vec<Self> {
        let is_needed = |layout: &Self| kinds.iter().any(|kind| kind.layout() == *layout);
        Self::ALL.into_iter().filter(is_needed).collect()
    }

    /// Which of these kinds happen to a job that is laid out so: its own ones; where there is more than a
    /// launcher a worker is killed now and then as well, and where there are hosts the coordinator.
    pub(super) fn kinds(self, asked: &[FaultKind]) -> Vec<FaultKind> {
        let takes = |kind: &FaultKind| match self {
            Self::Here => false,
            Self::Open => *kind == FaultKind::Kill,
            Self::TwoHosts => matches!(kind, FaultKind::Kill | FaultKind::Coordinator),
        };
        let asked = asked.iter().copied();
        asked.filter(|k| k.layout() == self || takes(k)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fault_has_a_job_that_it_happens_to() {
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
