//! The outcomes of saves: those of this rank's threads, which it sends to all ranks as notes, and the notes of all ranks.

use std::time::Duration;

use ronde_checkpoint::{CheckpointError, Fence, SavedPart};
use ronde_clock::Stopwatch;
use ronde_core::{Event, Rank};

use super::{RankPosition, RunCheckpoints};
use crate::checkpoints::notes::{self, SaveFailure, SaveNote};
use crate::checkpoints::publish_thread::{CompleteSave, PublishTask, PublishTaskResult, retention};

impl RunCheckpoints {
    /// Processes the results of this rank's threads; waits up to `limit` while the publishing thread is busy.
    pub(super) fn poll(&mut self, now: &RankPosition<'_>, limit: Duration) {
        if let Some(outcome) = self.threads.written() {
            self.share_written(outcome);
        }
        while let Some(outcome) = self.threads.next_published(limit) {
            self.task_finished(now, outcome);
        }
    }

    /// This rank's share is written, or not.
    pub(super) fn share_written(&mut self, outcome: Result<SavedPart, CheckpointError>) {
        let Some(pending) = &self.pending else {
            return;
        };
        let (step, held_up_s) = (pending.step, pending.held_up_s);
        match outcome {
            Ok(part) if (part.step, part.fence) == (step, pending.fence) => {
                self.notes.push(SaveNote::Saved { part, held_up_s });
            }
            // The share of a cancelled save.
            Ok(_) => {}
            Err(error) => self.notes.push(SaveNote::Failed {
                step,
                failure: SaveFailure::from(&error),
            }),
        }
    }

    fn task_finished(&mut self, now: &RankPosition<'_>, outcome: PublishTaskResult) {
        match outcome {
            PublishTaskResult::Claimed | PublishTaskResult::Discarded => {}
            PublishTaskResult::Term(fence) => {
                self.term.is_being_claimed = false;
                self.term.number = Some(fence.term);
                self.notes.push(SaveNote::Term(fence.term));
                if fence.generation != now.generation {
                    let generation = now.generation;
                    self.submit(
                        now,
                        PublishTask::Claim(
                            Fence {
                                generation,
                                ..fence
                            },
                            now.next,
                        ),
                    );
                }
            }
            PublishTaskResult::NotClaimed(step, failure) => {
                self.term.is_being_claimed = false;
                // Do not try again at every step.
                (self.is_overdue, self.since) = (false, Stopwatch::start());
                self.record_failure(now, step, now.rank, failure);
            }
            PublishTaskResult::Published(step, notice) => {
                if let Some(message) = notice {
                    let rank = Some(now.rank);
                    now.tracker.record(Event::Notice { rank, message });
                }
                self.saved = Some(step);
                let pending = self.pending.as_ref().filter(|save| save.step == step);
                now.tracker.record(Event::CheckpointSaved {
                    step,
                    generation: now.generation,
                    bytes: pending.map_or(0, |s| s.parts.iter().map(|p| p.file.bytes).sum()),
                    held_up_s: pending.map_or(f64::NAN, |save| save.held_up_s),
                    total_s: pending.map_or(f64::NAN, |save| save.since.elapsed_s()),
                    address: self.target.address.clone(),
                });
                self.notes.push(SaveNote::Published { step });
            }
            PublishTaskResult::NotPublished(step, failure) => {
                self.notes.push(SaveNote::Failed { step, failure })
            }
        }
    }

    /// Processes the notes that all ranks sent with a vote, by rank. This rank's own queue is cleared.
    pub(crate) fn receive_notes(&mut self, now: &RankPosition<'_>, notes: &[Vec<u8>]) {
        self.notes.clear();
        for (rank, note) in (0..).zip(notes) {
            for note in notes::decode(note) {
                self.receive_note(now, Rank(rank), note);
            }
        }
        self.publish_if_complete(now);
    }

    /// Returns whether the next save has no reserved memory yet.
    pub(crate) fn needs_memory(&self) -> bool {
        self.term.number.is_some() && !self.threads.can_write()
    }

    /// Reserves memory for the first save of this size, in the thread that writes it.
    pub(crate) fn reserve(&mut self, bytes: usize) {
        self.threads.reserve(&self.target, bytes);
    }

    fn receive_note(&mut self, now: &RankPosition<'_>, rank: Rank, note: SaveNote) {
        let save = self.pending.as_mut();
        match note {
            SaveNote::Term(term) => self.term.number = Some(term),
            SaveNote::Saved { part, held_up_s } => {
                if let Some(save) = save
                    && (part.step, part.fence) == (save.step, save.fence)
                    && save.parts.iter().all(|other| other.rank != part.rank)
                {
                    save.held_up_s = save.held_up_s.max(held_up_s);
                    save.parts.push(part);
                }
            }
            SaveNote::Failed { step, failure } => {
                let cancelled = self.pending.take_if(|save| save.step == step);
                if let Some(save) = cancelled
                    && now.rank == Rank(0)
                {
                    self.record_failure(now, step, rank, failure);
                    if !save.published {
                        self.submit(now, PublishTask::Discard(save.parts));
                    }
                }
            }
            SaveNote::Published { step } => {
                self.saved = Some(step);
                self.pending.take_if(|save| save.step == step);
            }
        }
    }

    /// Publishes the pending save on rank 0 as soon as all ranks have written their shares.
    fn publish_if_complete(&mut self, now: &RankPosition<'_>) {
        let Some(save) = &mut self.pending else {
            return;
        };
        if now.rank != Rank(0) || save.published || save.parts.len() < save.world_size.len() {
            return;
        }
        save.published = true;
        let save = CompleteSave {
            run: self.target.name.clone(),
            step: save.step,
            epoch: save.epoch,
            fence: save.fence,
            world_size: save.world_size,
            identity: now.identity.clone(),
            signature: now.signature.clone(),
            vectors: now.layout.vectors.clone(),
            cursor: std::mem::take(&mut save.cursor),
            parts: save.parts.clone(),
            retention: retention(self.section.keep, self.section.keep_every_steps),
        };
        self.submit(now, PublishTask::Publish(Box::new(save)));
    }
}
