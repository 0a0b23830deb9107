//! Once nothing goes wrong any more, the job comes to its end, and to the one that was asked for.

use ronde_elastic::JobEnding;

use crate::fact::Fact;
use crate::faults::{Fault, Script};
use crate::invariants::Invariant;

/// See the file's first line.
#[derive(Debug)]
pub(super) struct Progress {
    may_stop: bool,
    ending: Option<JobEnding>,
}

impl Progress {
    pub(super) fn new(script: &Script) -> Self {
        let leaves = |(_, fault): &(u64, Fault)| matches!(fault, Fault::Stop | Fault::Drain(_));
        Self {
            may_stop: script.faults.iter().any(leaves),
            ending: None,
        }
    }
}

impl Invariant for Progress {
    fn name(&self) -> &'static str {
        "steps advance once nothing goes wrong"
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
                return Err("nobody has said how the job ended".to_owned());
            }
            _ => {}
        }
        Ok(())
    }
}
