//! [`PlanningDevice`]: a device that computes nothing and counts memory.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Device, DeviceBuffer, DeviceKernel, DeviceSliceMut, ForeignMemory};
use crate::memory::{LENGTH_MIN, MemoryUse, Placement, Placements};

/// Plans memory: runs the code of layers without values, and counts the memory that they take on the host, at the offsets
/// of the host. A pass costs microseconds per operation, whatever the model's size. Values read from it are zeros.
#[derive(Debug, Default)]
pub struct PlanningDevice {
    planned: Arc<Mutex<PlannedUse>>,
}

#[derive(Debug, Default)]
struct PlannedUse {
    /// Blocks in slabs; new blocks belong to the last one.
    placements: Vec<Placements>,
    /// The floats on the heap, now and at most.
    heap: usize,
    heap_most: usize,
}

impl PlanningDevice {
    /// Creates a device without memory in use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans further blocks in separate slabs: the host does not need memory like the earlier ones.
    pub(crate) fn start_slabs(&self) {
        locked(&self.planned).placements.push(Placements::default());
    }

    /// Returns values that the host has on its heap, such as samples.
    pub(crate) fn on_heap(&self, length: usize) -> DeviceBuffer {
        let mut planned = locked(&self.planned);
        planned.heap += length;
        planned.heap_most = planned.heap_most.max(planned.heap);
        drop(planned);
        self.buffer(None, length)
    }

    fn buffer(&self, placement: Option<(usize, Placement)>, length: usize) -> DeviceBuffer {
        DeviceBuffer::Foreign(Box::new(PlannedMemory {
            placement,
            length,
            planned: self.planned.clone(),
        }))
    }

    /// Returns the memory taken so far.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        let planned = locked(&self.planned);
        let mut all = MemoryUse {
            in_use: planned.heap,
            taken: planned.heap_most,
        };
        for slabs in planned.placements.iter().map(Placements::memory) {
            all.in_use += slabs.in_use;
            all.taken += slabs.taken;
        }
        all
    }
}

fn locked(planned: &Mutex<PlannedUse>) -> MutexGuard<'_, PlannedUse> {
    planned.lock().unwrap_or_else(PoisonError::into_inner)
}

struct PlannedMemory {
    /// The number of the slabs and the place in them; `None` on the heap.
    placement: Option<(usize, Placement)>,
    length: usize,
    planned: Arc<Mutex<PlannedUse>>,
}

impl Drop for PlannedMemory {
    fn drop(&mut self) {
        let mut planned = locked(&self.planned);
        match self.placement {
            Some((slabs, placement)) => planned.placements[slabs].give(placement),
            None => planned.heap -= self.length,
        }
    }
}

impl ForeignMemory for PlannedMemory {
    fn length(&self) -> usize {
        self.length
    }

    fn read(&self, to: &mut [f32]) {
        to.fill(0.0);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Device for PlanningDevice {
    fn name(&self) -> String {
        "planning".to_owned()
    }

    fn allocate(&self, length: usize) -> DeviceBuffer {
        if length < LENGTH_MIN {
            return self.on_heap(length);
        }
        let mut planned = locked(&self.planned);
        if planned.placements.is_empty() {
            planned.placements.push(Placements::default());
        }
        let slabs = planned.placements.len() - 1;
        let placement = planned.placements[slabs].take(length);
        drop(planned);
        self.buffer(Some((slabs, placement)), length)
    }

    fn has_independent_rows(&self) -> bool {
        true
    }

    fn is_host(&self) -> bool {
        false
    }

    fn write(&self, _from: &[f32], _to: DeviceSliceMut<'_>) {}

    fn run(&self, _kernel: DeviceKernel<'_>) {}
}
