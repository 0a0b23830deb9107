//! What is asked of a coordinator with a join token: a certificate, the status, another count.

use std::net::SocketAddr;

use ronde_elastic::CoordinatorEvent;
use ronde_identity::{Member, Validity};

use super::{CERTIFICATE, Leader};
use crate::board::Status;
use crate::clock;
use crate::talk::{Answer, Asks};

/// Longest name of a host.
const HOST_BYTES_MAX: usize = 255;

impl Leader<'_> {
    pub(super) fn asked(&mut self, asks: Asks, from: SocketAddr) -> Answer {
        match asks {
            Asks::Certificate { host } => self.certificate(&host, from),
            _ if !self.leads() => Answer::StandsBy {
                others: self.coordinators.clone(),
            },
            Asks::Status => Answer::Status(Box::new(self.status())),
            Asks::Scale { workers } => self.scale(workers),
        }
    }

    fn certificate(&mut self, host: &str, from: SocketAddr) -> Answer {
        if host.is_empty() || host.len() > HOST_BYTES_MAX || host.chars().any(char::is_control) {
            return Answer::Refused {
                reason: format!("a host's name has 1 to {HOST_BYTES_MAX} bytes, all printable"),
            };
        }
        let validity = Validity::from_now(clock::today(), CERTIFICATE);
        match self
            .authority
            .issue(&Member::Host(host.to_owned()), validity)
        {
            Ok(identity) => {
                if self.agents.number_of(host).is_none() {
                    self.announce(format!("host {host} at {} joins", from.ip()));
                }
                Answer::Certificate {
                    job: self.folder.spec().job.clone(),
                    identity: identity.to_pem().expose().to_owned(),
                }
            }
            Err(error) => Answer::Refused {
                reason: error.to_string(),
            },
        }
    }

    fn scale(&mut self, workers: u32) -> Answer {
        let settings = self.folder.spec().settings;
        let (least, most) = (settings.workers_min, settings.workers_max);
        if !(least..=most).contains(&workers) {
            return Answer::Refused {
                reason: format!(
                    "{workers} workers; this job takes {least} to {most} (elastic.min_workers, elastic.max_workers)"
                ),
            };
        }
        self.state.workers = Some(workers);
        self.keep_state();
        let slots: u32 = self.agents.hosts().iter().map(|host| host.slots).sum();
        let mut note = format!("{workers} workers are wanted");
        if slots < workers {
            note += &format!(
                "; the connected hosts offer {slots} slots; `ronde join` adds another host"
            );
        }
        self.announce(note.clone());
        self.feed(CoordinatorEvent::Scale { workers });
        Answer::Done { note }
    }

    fn status(&self) -> Status {
        let record = self.machine.record();
        let mut status = self.board.status(self.identity.job(), &record.members);
        (status.phase, status.term) = (record.phase, record.term);
        status.generation = record.generation;
        status.coordinator = Some(self.address);
        status.wanted = self.machine.wanted();
        status.hosts = self.agents.hosts();
        status.waits_for = self.machine.waits_for().map(ToString::to_string);
        for (shown, member) in status.members.iter_mut().zip(&record.members) {
            shown.lost = self.machine.lost(member.worker).map(ToString::to_string);
            if let Some(report) = self.machine.last_report(member.worker) {
                shown.phase = Some(report.phase);
                shown.next_step = report.next.map(|step| step.0);
                shown.draining = report.draining;
            }
        }
        status
    }
}
