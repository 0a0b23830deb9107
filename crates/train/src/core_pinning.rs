//! [`CorePinning`]: reserves cores for a worker's computing threads; its other threads use the remaining cores.

use std::cell::Cell;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores of a worker's threads, on hosts with spare cores. A thread inherits the cores of the thread that
/// starts it, so other threads are started while the caller is unpinned.
#[derive(Debug)]
pub(crate) struct CorePinning {
    all: CpuSet,
    compute: CpuSet,
    others: CpuSet,
    is_pinned: Cell<bool>,
}

impl CorePinning {
    /// Moves the calling thread to the shared cores, for a worker that is one of several on this host. Returns
    /// `None` without a change if a worker's `threads` and one core more for each are too many, or the system refuses.
    pub(crate) fn reserve(local_rank: u32, local_world_size: u32, threads: u32) -> Option<Self> {
        let all = sched_getaffinity(None).ok()?;
        let (compute, others) = share(&all, local_rank, local_world_size, threads)?;
        sched_setaffinity(None, &others).ok()?;
        Some(Self {
            all,
            compute,
            others,
            is_pinned: Cell::new(false),
        })
    }

    /// Moves the calling thread to the reserved cores. Cost: one system call if it is not there yet.
    pub(crate) fn pin_compute_thread(&self) {
        if !self.is_pinned.replace(true) {
            // If the system now refuses, the thread computes on its current cores.
            let _ = sched_setaffinity(None, &self.compute);
        }
    }

    /// Moves the calling thread back to the shared cores.
    pub(crate) fn unpin(&self) {
        if self.is_pinned.replace(false) {
            let _ = sched_setaffinity(None, &self.others);
        }
    }
}

impl Drop for CorePinning {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.all);
    }
}

/// Returns a worker's share of the cores of this host that no worker computes on.
pub(crate) fn free(local_world_size: u32, threads: u32) -> usize {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = (local_world_size as usize).max(1);
    let computing = workers.saturating_mul(threads as usize);
    all.saturating_sub(computing) / workers
}

/// Returns the notice that the workers of this host have no separate cores, with the cause.
pub(crate) fn no_effect(local_world_size: u32, threads: u32) -> String {
    let needed = cores_needed(threads as usize, local_world_size as usize);
    let cores = sched_getaffinity(None).map_or(0, |all| all.count() as usize);
    let cause = if cores < needed {
        format!(
            "workers.threads = {threads} and {local_world_size} workers on this host need {needed} cores, one more for each \
             worker, but it has {cores}; lower workers.count or workers.threads, or leave the key out"
        )
    } else {
        "the system does not allow threads to choose their cores".to_owned()
    };
    format!("workers.pin_cores has no effect: {cause}")
}

/// Returns the cores that a host needs to reserve some for each of its workers.
fn cores_needed(threads: usize, workers: usize) -> usize {
    threads.max(1).saturating_add(1).saturating_mul(workers)
}

/// Returns the reserved cores of a worker, and the cores that no worker computes on.
fn share(
    all: &CpuSet,
    local_rank: u32,
    local_world_size: u32,
    threads: u32,
) -> Option<(CpuSet, CpuSet)> {
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&core| all.is_set(core))
        .collect();
    let (rank, workers) = (local_rank as usize, local_world_size as usize);
    let threads = (threads as usize).max(1);
    if workers == 0 || rank >= workers || cores.len() < cores_needed(threads, workers) {
        return None;
    }
    let set = |cores: &[usize]| {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        set
    };
    let own = &cores[rank * threads..(rank + 1) * threads];
    Some((set(own), set(&cores[workers * threads..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cores: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        set
    }

    #[test]
    fn each_worker_computes_on_its_own_cores_where_there_is_one_more_for_each() {
        let all = set(&[1, 4, 5, 9, 12]);
        assert_eq!(share(&all, 0, 1, 1), Some((set(&[1]), set(&[4, 5, 9, 12]))));
        assert_eq!(share(&all, 0, 2, 1), Some((set(&[1]), set(&[5, 9, 12]))));
        assert_eq!(share(&all, 1, 2, 1), Some((set(&[4]), set(&[5, 9, 12]))));
        assert_eq!(share(&all, 0, 3, 1), None);
        assert_eq!(share(&all, 2, 2, 1), None);
        assert_eq!(share(&set(&[0]), 0, 1, 1), None);
        assert_eq!(share(&all, 0, 0, 1), None);
        assert_eq!(share(&all, 0, 1, 3), Some((set(&[1, 4, 5]), set(&[9, 12]))));
        assert_eq!(share(&all, 0, 2, 2), None);
    }

    #[test]
    fn too_few_cores_are_named_with_the_needed_ones() {
        let notice = no_effect(50_000, 3);
        for part in ["workers.pin_cores has no effect", "need 200000 cores"] {
            assert!(notice.contains(part), "{notice}");
        }
    }

    #[test]
    fn a_thread_moves_to_its_core_and_back_and_other_threads_stay_on_shared_cores() {
        // In a separate thread, because the setting belongs to the thread.
        let checked = std::thread::spawn(|| {
            let all = sched_getaffinity(None).unwrap();
            let Some(cores) = CorePinning::reserve(0, 1, 1) else {
                assert!(all.count() < 2, "there are cores to spare");
                return;
            };
            let started = std::thread::spawn(|| sched_getaffinity(None).unwrap());
            assert_eq!(started.join().unwrap(), cores.others);
            cores.pin_compute_thread();
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            cores.unpin();
            assert_eq!(sched_getaffinity(None).unwrap(), cores.others);
            drop(cores);
            assert_eq!(sched_getaffinity(None).unwrap(), all);
        });
        checked.join().unwrap();
    }
}
