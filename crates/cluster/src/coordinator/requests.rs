//! Requests that are authenticated by a join token: a certificate, the status, the events, a new
//! number of workers.

use std::net::SocketAddr;

use ronde_identity::{Member, Validity};
use ronde_protocol::CoordinatorEvent;

use super::{CERTIFICATE, CoordinatorShell};
use crate::messages::{RequestBody, TokenReply};
use crate::status::Status;

/// Maximum length of a host name, in bytes.
const HOST_BYTES_MAX: usize = 255;

impl CoordinatorShell<'_> {
    pub(super) fn asked(&mut self, asks: RequestBody, from: SocketAddr) -> TokenReply {
        match asks {
            RequestBody::Certificate { host } => self.certificate(&host, from),
            _ if !self.leads() => TokenReply::StandsBy {
                others: self.coordinators.clone(),
            },
            RequestBody::Status => TokenReply::Status(Box::new(self.status())),
            RequestBody::Events { from } => self.event_lines(from),
            RequestBody::Scale { workers } => self.scale(workers),
        }
    }

    fn certificate(&mut self, host: &str, from: SocketAddr) -> TokenReply {
        if host.is_empty() || host.len() > HOST_BYTES_MAX || host.chars().any(char::is_control) {
            return TokenReply::Refused {
                reason: format!(
                    "invalid host name: expected 1 to {HOST_BYTES_MAX} printable bytes"
                ),
            };
        }
        let validity = Validity::from_now(ronde_clock::date(), CERTIFICATE);
        match self
            .authority
            .issue(&Member::Host(host.to_owned()), validity)
        {
            Ok(identity) => {
                if self.agents.number_of(host).is_none() {
                    self.announce(format!("host {host} joined from {}", from.ip()));
                }
                TokenReply::Certificate {
                    job: self.folder.spec().job.clone(),
                    identity: identity.to_pem().expose().to_owned(),
                }
            }
            Err(error) => TokenReply::Refused {
                reason: error.to_string(),
            },
        }
    }

    fn event_lines(&self, from: u64) -> TokenReply {
        let Some(journal) = &self.journal else {
            return TokenReply::Refused {
                reason: "this coordinator cannot write the events of the job".to_owned(),
            };
        };
        match journal.lines_from(from) {
            Ok(lines) => TokenReply::Events(lines),
            Err(error) => TokenReply::Refused {
                reason: format!("cannot read the events of the job: {error}"),
            },
        }
    }

    fn scale(&mut self, workers: u32) -> TokenReply {
        let settings = self.folder.spec().settings;
        let (least, most) = (settings.workers_min, settings.workers_max);
        if !(least..=most).contains(&workers) {
            return TokenReply::Refused {
                reason: format!(
                    "invalid number of workers {workers}: expected {least} to {most} (elastic.min_workers, elastic.max_workers)"
                ),
            };
        }
        self.state.workers = Some(workers);
        self.keep_state();
        let slots: u32 = self.agents.hosts().iter().map(|host| host.slots).sum();
        let mut note = match workers {
            1 => "the target is now 1 worker".to_owned(),
            workers => format!("the target is now {workers} workers"),
        };
        if slots < workers {
            note += &format!(
                "; the connected hosts offer {slots} slots; `ronde join` adds another host"
            );
        }
        self.announce(note.clone());
        self.feed(CoordinatorEvent::Scale { workers });
        TokenReply::Done { note }
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
