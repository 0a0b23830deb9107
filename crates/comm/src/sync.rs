//! What [`crate::work`] locks and waits with; `tests/schedules` compiles that file with a model's instead.

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
