//! After the last fault, the job finishes or stops as requested.

use ronde_protocol::JobEnding;

use crate::cluster::fact::Fact;
use crate::cluster::faults::{Fault, Script};
use crate::cluster::invariants::Invariant;

/// See the file's first line.
#[derive(Debug)]
pub(super) struct EventualProgress {
    may_stop: bool,
    ending: Option<JobEnding>,
}

impl EventualProgress {
    pub(super) fn new(script: &Script) -> Self {
        let leaves = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Stop | Fault::Drain(_));
        Self {
            may_stop: script.faults.iter().any(leaves),
            ending: None,
        }
    }
}

impl Invariant for EventualProgress {
    fn name(&self) -> &'static str {
        "the job finishes after the last fault"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Over(ending) => {
                if *ending == JobEnding::Failed || *ending == JobEnding::Stopped && !self.may_stop {
                    return Err(format!("the job ended: {ending:?}"));
                }
                self.ending = Some(*ending);
            }
            Fact::TheEnd {
                in_time: false,
                running,
            } => {
                return Err(format!("the job did not end; {running} workers still run"));
            }
            Fact::TheEnd { in_time: true, .. } if self.ending.is_none() => {
                return Err("no coordinator has reported the end of the job".to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}
