//! No coordinator leads after another one has begun to lead in a later term.

use ronde_protocol::{CoordinatorId, Term};

use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct SingleLeader {
    last: Option<(CoordinatorId, Term)>,
}

impl Invariant for SingleLeader {
    fn name(&self) -> &'static str {
        "at most one coordinator leads"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        let Fact::Leads(who, term) = fact else {
            return Ok(());
        };
        if let Some((before, newest)) = self.last
            && (*term < newest || before != *who && *term == newest)
        {
            return Err(format!(
                "coordinator {who} leads in term {term}, after coordinator {before} began term {newest}"
            ));
        }
        self.last = Some((*who, *term));
        Ok(())
    }
}
