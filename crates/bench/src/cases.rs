//! [`OperationCase`]: one configuration of an operation, and the list of those that a run measures.

use ronde_core::ReduceOp;
use ronde_schedule::choose::has_several;
use ronde_schedule::make::refusal;
use ronde_schedule::{Algorithm, Hosts};

use crate::operation::{OperationKind, OperationShape};
use crate::settings::{BenchTransport, BufferMemory, Preference, Settings};

/// One configuration of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OperationCase {
    pub(crate) transport: BenchTransport,
    pub(crate) memory: BufferMemory,
    pub(crate) algorithm: Preference,
}

/// The cases of an operation, and notes on those that are left out.
pub(crate) struct OperationCases {
    pub(crate) cases: Vec<OperationCase>,
    pub(crate) notes: Vec<String>,
}

/// Returns whether an operation uses the memory shared by its ranks. Then there is only one
/// implementation, whatever algorithm is requested.
pub(crate) fn is_in_place(kind: OperationKind, op: ReduceOp) -> bool {
    let known = matches!(
        op,
        ReduceOp::Sum | ReduceOp::Min | ReduceOp::Max | ReduceOp::Product
    );
    match kind {
        OperationKind::AllReduce | OperationKind::ReduceScatter => known,
        OperationKind::ExactSum
        | OperationKind::AllGather
        | OperationKind::Broadcast
        | OperationKind::Barrier => true,
        _ => false,
    }
}

impl OperationCases {
    pub(crate) fn of(settings: &Settings, kind: OperationKind, hosts: &Hosts) -> Self {
        let mut all = Self {
            cases: Vec::new(),
            notes: Vec::new(),
        };
        let shape = OperationShape::new(kind, settings.op, settings.dtype, hosts.size(), 8);
        if let Some(problem) = shape.refusal() {
            all.notes.push(format!("{kind} is skipped: {problem}"));
            return all;
        }
        for &transport in &settings.transports {
            let shares = matches!(
                transport,
                BenchTransport::Auto | BenchTransport::SharedMemory
            );
            let in_place = shares && is_in_place(kind, settings.op);
            let algorithms = if in_place {
                vec![Preference(None)]
            } else {
                all.algorithms(settings, &shape, hosts)
            };
            let matters = shares && kind != OperationKind::Barrier;
            let any = [BufferMemory::Any];
            let memories = if matters { &*settings.memories } else { &any };
            for &algorithm in &algorithms {
                all.cases
                    .extend(memories.iter().map(|&memory| OperationCase {
                        transport,
                        memory,
                        algorithm,
                    }));
            }
        }
        all
    }

    /// Returns the requested algorithms that can run the operation; the only one where there is no
    /// choice.
    fn algorithms(
        &mut self,
        settings: &Settings,
        shape: &OperationShape,
        hosts: &Hosts,
    ) -> Vec<Preference> {
        let operation = shape.operation(0).filter(has_several);
        let Some(operation) = operation else {
            return vec![Preference(None)];
        };
        let mut able = Vec::new();
        for &preference in &settings.algorithms {
            let problem = preference.0.and_then(|algorithm| {
                if algorithm == Algorithm::Hierarchical && !hosts.are_nested() {
                    return Some(
                        "no host has several ranks beside another host; simulate that with --hosts 2".to_owned(),
                    );
                }
                refusal(algorithm, &operation, hosts)
            });
            match problem {
                None => able.push(preference),
                Some(problem) => {
                    let note = format!("{} by {preference} is skipped: {problem}", shape.kind);
                    if !self.notes.contains(&note) {
                        self.notes.push(note);
                    }
                }
            }
        }
        able
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::DType;

    use super::*;
    use crate::settings::small;

    fn count(settings: &Settings, kind: OperationKind, ranks: usize) -> (usize, Vec<String>) {
        let cases = OperationCases::of(settings, kind, &settings.layout(ranks));
        (cases.cases.len(), cases.notes)
    }

    #[test]
    fn equivalent_configurations_are_one_case() {
        let mut settings = small();
        settings.transports = BenchTransport::ALL.to_vec();
        settings.algorithms = ["auto", "ring", "tree"].map(|a| a.parse().unwrap()).into();
        // Two transports with shared memory and two memories; two without and three algorithms.
        assert_eq!(
            count(&settings, OperationKind::AllReduce, 4).0,
            2 * 2 + 2 * 3
        );
        assert_eq!(count(&settings, OperationKind::Barrier, 4).0, 4);
        assert_eq!(count(&settings, OperationKind::AllToAll, 4).0, 2 * 2 + 2);
        let (cases, notes) = count(&settings, OperationKind::Broadcast, 4);
        assert_eq!(cases, 2 * 2 + 2 * 2);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("broadcast by ring is skipped: a broadcast supports only"));
        settings.dtype = DType::I32;
        let (cases, notes) = count(&settings, OperationKind::ExactSum, 4);
        assert_eq!(cases, 0);
        assert!(notes[0].contains("exact_sum is skipped"), "{notes:?}");
    }

    #[test]
    fn hierarchical_needs_hosts() {
        let mut settings = small();
        settings.transports = vec![BenchTransport::Tcp];
        settings.algorithms = vec!["hierarchical".parse().unwrap()];
        let (cases, notes) = count(&settings, OperationKind::AllReduce, 4);
        assert_eq!(cases, 0);
        assert!(notes[0].contains("--hosts 2"), "{notes:?}");
        settings.hosts = 2;
        assert_eq!(count(&settings, OperationKind::AllReduce, 4).0, 1);
    }
}
