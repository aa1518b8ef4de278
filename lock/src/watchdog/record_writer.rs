//! The client's record on the server, kept by the renewal threads (DESIGN: holders).
//!
//! It is written when the client has had a hold, or a place in the queue of a fair lock, for a
//! moment, renewed while it has one, and removed when the client ends. No lock depends on it, and
//! no caller waits for it.

use std::collections::BTreeMap;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::events::report::Warning;
use crate::hold::long_waits::{NamedWaits, WRITE_INTERVAL};
use crate::model::panics::catch_panic;
use crate::model::sync::Mutex;
use crate::ops::client_record::{WriteRecord, record_key, value_field};
use crate::store::{Failure, PipelineRequest, PipelineSource, ServerId};
use crate::watchdog::context::Context;
use crate::watchdog::pending_releases::PendingReleases;
use crate::watchdog::workers::Workers;

/// How long the record lives after it was written.
const LIFETIME: Duration = Duration::from_secs(60);
/// How often it is written while it is needed.
const INTERVAL: Duration = Duration::from_secs(20);
/// How long a write because of waits may take: renewals wait for the write.
const WAITS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a client has a hold before its record is written. A program that holds a lock for
/// less leaves no record.
const DELAY: Duration = Duration::from_secs(1);
/// The most leaders of one client whose values are written.
const MAX_VALUES: usize = 64;
/// How long its removal may take when the client ends.
const LAST_CALL: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct RecordWriter {
    context: Arc<Context>,
    workers: Arc<Workers>,
    releases: Arc<PendingReleases>,
    key: Arc<str>,
    schedule: Mutex<WriteSchedule>,
    /// Whether a waiter has woken the renewal threads for it.
    is_requested: AtomicBool,
    /// Whether the waits that it names have changed, or another client wants to read them.
    must_name_waits: AtomicBool,
    /// What leaders of this client say of themselves, by their owners.
    values: Mutex<BTreeMap<String, Arc<str>>>,
}

#[derive(Debug, Default)]
struct WriteSchedule {
    /// When to write it, if it is needed then.
    due: Option<Instant>,
    /// It may be on the server.
    is_written: bool,
    /// It names waits there, or may.
    has_waits: bool,
    /// When it was written last because of waits.
    waits_written: Option<Instant>,
    /// The client was shut down: it is removed, and not written again.
    has_ended: bool,
}

impl RecordWriter {
    pub(crate) fn new(
        context: Arc<Context>,
        workers: Arc<Workers>,
        releases: Arc<PendingReleases>,
    ) -> Self {
        let key = record_key(&context.client.id);
        Self {
            context,
            workers,
            releases,
            key,
            schedule: Mutex::default(),
            is_requested: AtomicBool::new(false),
            must_name_waits: AtomicBool::new(false),
            values: Mutex::default(),
        }
    }

    /// A leader of this client says something of itself, until it leads no more. The record is written
    /// at once, by a renewal thread.
    pub(crate) fn advertise(&self, owner: &str, value: &Arc<str>, now: Instant) {
        self.values.lock().insert(owner.to_owned(), Arc::clone(value));
        self.schedule.lock().due = Some(now);
        self.workers.wake();
    }

    /// A leader leads no more. What it has said is gone with the next write.
    pub(crate) fn stop_advertising(&self, owner: &str) {
        self.values.lock().remove(owner);
    }

    /// A place in a queue on the server needs it. A hold does too, but wakes the renewal threads
    /// anyway.
    pub(crate) fn request(&self) {
        if !self.is_requested.swap(true, Ordering::Relaxed) {
            self.workers.wake();
        }
    }

    /// The waits that the record names have changed, or another client wants to read them: the record
    /// is written anew within moments.
    pub(crate) fn name_waits(&self) {
        self.must_name_waits.store(true, Ordering::Relaxed);
        if !self.schedule.lock().has_ended {
            self.workers.with_worker(self.server(), |worker| worker.parker.unpark());
        }
    }

    /// The client was shut down. Returns at once; a renewal thread removes the record.
    pub(crate) fn end(&self) {
        let was_written = {
            let mut schedule = self.schedule.lock();
            schedule.has_ended = true;
            schedule.is_written
        };
        if was_written {
            self.workers.wake();
        }
    }

    /// On a renewal thread: writes the record if it is needed and due. Returns when to look again.
    /// The record is written by the thread of its own server only, so that no other server delays
    /// the renewals of this one.
    pub(crate) fn run(&self, server: ServerId, now: Instant) -> Option<Instant> {
        let is_here = self.server() == server;
        // In this order: a wait that is listed later is named by the next record.
        let must_name_waits = is_here && self.must_name_waits.swap(false, Ordering::Relaxed);
        let waits = self.context.holds.long_waits.named(now);
        let is_needed =
            self.context.holds.len() > 0 || self.releases.ledger().has_waiters() || waits.is_some();
        let recovers = self.context.store.may_recover_by_itself();
        {
            let mut schedule = self.schedule.lock();
            if schedule.has_ended {
                drop(schedule);
                if is_here {
                    self.remove(server);
                }
                return None;
            }
            let names_waits = must_name_waits && (waits.is_some() || schedule.has_waits);
            if !is_needed && !names_waits {
                self.is_requested.store(false, Ordering::Relaxed);
                return None;
            }
            // In memory nothing is woken for it, so it goes with the first renewals.
            let first = if recovers { now + DELAY } else { now };
            let due = *schedule.due.get_or_insert(first);
            let next = schedule.waits_written.map_or(now, |last| last + WRITE_INTERVAL);
            if names_waits && next > now {
                self.must_name_waits.store(true, Ordering::Relaxed);
                return Some(next);
            }
            if due > now && !names_waits {
                return recovers.then_some(due);
            }
            if is_here {
                schedule.due = Some(now + INTERVAL);
                schedule.is_written = true;
                if names_waits {
                    schedule.waits_written = Some(now);
                }
                // Until the reply says that it names none, the record may name waits.
                schedule.has_waits |= waits.is_some();
            }
        }
        if !is_here {
            // That thread may not run yet.
            self.workers.with_worker(self.server(), |worker| worker.parker.unpark());
            return Some(now + DELAY);
        }
        let age = now.saturating_duration_since(self.context.client.started);
        let timeout = self.context.release_timeout();
        let timeout = if waits.is_some() { timeout.min(WAITS_TIMEOUT) } else { timeout };
        let field = waits.as_ref().map(|waits| waits.field.clone());
        let operation = WriteRecord { waits: field, ..self.record(age, LIFETIME) };
        self.send(server, operation, timeout, waits);
        if self.must_name_waits.load(Ordering::Relaxed) {
            return Some(now + WRITE_INTERVAL);
        }
        recovers.then_some(now + INTERVAL)
    }

    /// Removes the record if it was written. Not after a failure: it expires.
    pub(crate) fn remove(&self, server: ServerId) {
        let was_written = {
            let mut schedule = self.schedule.lock();
            schedule.has_ended = true;
            self.server() == server && std::mem::take(&mut schedule.is_written)
        };
        if was_written {
            let timeout = LAST_CALL.min(self.context.release_timeout());
            self.send(server, self.record(Duration::ZERO, Duration::ZERO), timeout, None);
        }
    }

    fn server(&self) -> ServerId {
        self.context.store.server_of(&self.key)
    }

    fn record(&self, age: Duration, lifetime: Duration) -> WriteRecord {
        let client = &self.context.client;
        let values = self.values.lock();
        let values = values.iter().map(|(owner, it)| (value_field(owner), Arc::clone(it)));
        WriteRecord {
            key: Arc::clone(&self.key),
            label: Arc::clone(&client.label),
            process: process::id(),
            age,
            lifetime,
            caches: self.context.holds.cache.is_used(),
            values: values.take(MAX_VALUES).collect(),
            waits: None,
        }
    }

    fn send(
        &self,
        server: ServerId,
        operation: WriteRecord,
        timeout: Duration,
        waits: Option<NamedWaits>,
    ) {
        let mut call = RecordCall { writer: self, operation: Some(operation), timeout, waits };
        self.context.store.run_pipeline(server, &mut call);
    }

    /// The record was written at this time, by the server's clock.
    fn is_written(&self, waits: Option<&NamedWaits>, at: i64) {
        self.schedule.lock().has_waits = waits.is_some();
        // If the clock panics, the waits are named again at the next interval.
        if let (Some(waits), Some(now)) = (waits, catch_panic(|| self.context.clock.now())) {
            self.context.holds.long_waits.are_written(waits, at, now);
        }
    }
}

/// One write of the record.
struct RecordCall<'a> {
    writer: &'a RecordWriter,
    operation: Option<WriteRecord>,
    timeout: Duration,
    waits: Option<NamedWaits>,
}

impl PipelineSource for RecordCall<'_> {
    type Operation = WriteRecord;
    type Tag = ();

    fn max_in_flight(&self) -> usize {
        1
    }

    fn next(&mut self) -> Option<PipelineRequest<WriteRecord, ()>> {
        let operation = self.operation.take()?;
        Some(PipelineRequest { operation, tag: (), timeout: self.timeout })
    }

    fn on_reply(&mut self, (): (), reply: Result<i64, Failure>) {
        match reply {
            Ok(at) => self.writer.is_written(self.waits.as_ref(), at),
            Err(Failure::Refused { code, message }) if code == "NOPERM" => {
                let refusal = format!("{code} {message}");
                self.writer.context.events.warn_once(Warning::RecordRefused { refusal });
            }
            // What did not arrive is written again at the next interval, or expires. Waits are named
            // again sooner.
            Err(_) if self.writer.schedule.lock().has_waits => {
                self.writer.must_name_waits.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
}
