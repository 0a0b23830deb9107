//! Borrowed memory lent to operations: used in place, and returned in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ronde_comm::ProcessGroup;
use ronde_comm::testing::run_ranks;
use ronde_core::{
    Buffer, CollectiveError, Collectives, CollectivesExt, DType, GroupRank, Memory, MemoryKind,
    Operation, ReduceOp,
};
use ronde_schedule::Algorithm;

use crate::meshes::{Kind, groups};

const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 40_001;

/// Memory of an external owner, which counts its loans. It starts at an odd element, as a part of an
/// external array may.
struct Lent {
    elements: Vec<f32>,
    out: Arc<AtomicUsize>,
}

impl Lent {
    fn buffer(value: f32, out: &Arc<AtomicUsize>) -> Buffer {
        out.fetch_add(1, Ordering::SeqCst);
        let memory = Self {
            elements: vec![value; LEN + 1],
            out: Arc::clone(out),
        };
        Buffer::from_memory(DType::F32, LEN, Box::new(memory))
    }
}

impl Memory for Lent {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    fn owner(&self) -> &'static str {
        "foreign"
    }

    fn bytes(&self) -> &[u8] {
        as_bytes(&self.elements[1..])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let elements = &mut self.elements[1..];
        #[expect(unsafe_code, reason = "what an owner of foreign memory does")]
        // SAFETY: floats are plain bytes, and any bytes are floats.
        unsafe {
            std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements))
        }
    }
}

fn as_bytes(elements: &[f32]) -> &[u8] {
    #[expect(unsafe_code, reason = "what an owner of foreign memory does")]
    // SAFETY: floats are plain bytes.
    unsafe {
        std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.out.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Reduces lent memory; it is returned in place, with the result in it.
fn reduce_in_place(group: &ProcessGroup, out: &Arc<AtomicUsize>) -> Result<(), CollectiveError> {
    let operations = [
        (Operation::AllReduce(ReduceOp::Sum), group.size() as f32),
        (Operation::Broadcast { root: GroupRank(0) }, 1.0),
    ];
    for (operation, expected) in operations {
        for is_started in [false, true] {
            let buffer = Lent::buffer(1.0, out);
            let place = buffer.bytes().as_ptr();
            let result = if is_started {
                group.start(operation.clone(), buffer)?.wait()?
            } else {
                group.run(operation.clone(), buffer)?
            };
            assert_eq!(result.owner(), "foreign", "{operation:?}");
            assert_eq!(result.bytes().as_ptr(), place, "{operation:?}");
            assert!(result.as_slice::<f32>().iter().all(|&x| x == expected));
        }
    }
    Ok(())
}

#[test]
fn lent_memory_is_used_in_place_and_returned_by_every_algorithm() {
    for kind in [Kind::InProcess, Kind::Tcp, Kind::Shared] {
        let out = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&out);
        run_ranks(groups(kind, 3, LIMIT), LIMIT, move |group| {
            for algorithm in Algorithm::ALL {
                let prefer = |config: &mut ronde_comm::GroupConfig| {
                    config.algorithm = Some(algorithm);
                };
                let sub = group.split_with(Some(0), 0, prefer)?;
                reduce_in_place(&sub.expect("it gave a colour"), &counted)?;
            }
            Ok::<_, CollectiveError>(())
        });
        assert_eq!(out.load(Ordering::SeqCst), 0, "{kind:?}");
    }
}

#[test]
fn lent_memory_is_returned_when_an_operation_fails() {
    for kind in [Kind::InProcess, Kind::Tcp, Kind::Shared] {
        let out = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&out);
        run_ranks(groups(kind, 3, LIMIT), LIMIT, move |group| {
            // The other ranks may be notified of the abort before they see that all have entered.
            let _met = group.barrier();
            if group.rank().0 == 2 {
                group.abort("enough");
            } else {
                let first = group.start(
                    Operation::AllReduce(ReduceOp::Sum),
                    Lent::buffer(1.0, &counted),
                );
                let second = group.start(Operation::AllGather, Lent::buffer(1.0, &counted));
                for work in [first, second].into_iter().flatten() {
                    assert!(work.wait().is_err());
                }
            }
            // The group is dropped, and with it every thread that may still hold some.
            drop(group);
            Ok::<_, CollectiveError>(())
        });
        assert_eq!(out.load(Ordering::SeqCst), 0, "{kind:?}");
    }
}
