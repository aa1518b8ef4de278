//! The client's record on the server, written by the renewal threads.
//!
//! The record is written when the client has had a hold, or a place in the queue of a fair lock,
//! for a second, so a program of one quick lock writes nothing. Further writes follow while the
//! client has a hold or place, and the end of the client removes the record. No lock depends on the
//! record, and no caller waits for a write. The key has no prefix: a reader only knows an owner.

use std::collections::BTreeMap;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::events::report::Warning;
use crate::hold::long_waits::{NamedWaits, WRITE_INTERVAL};
use crate::model::panics::catch_panic;
use crate::model::sync::Mutex;
use crate::ops::client_record::{WriteClientRecord, client_record_key, value_field};
use crate::store::{Failure, PipelineRequest, PipelineSource, ServerId};
use crate::watchdog::context::Context;
use crate::watchdog::shared_ledger::SharedLedger;
use crate::watchdog::workers::Workers;

/// The record's time to live on the server after a write.
const LIFETIME: Duration = Duration::from_secs(60);
/// The interval between writes while the record is needed.
const INTERVAL: Duration = Duration::from_secs(20);
/// Timeout of a write because of waits: renewals wait for the write.
const WAITS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long a client has a hold before its record is written. A program with shorter holds leaves
/// no record.
const DELAY: Duration = Duration::from_secs(1);
/// The maximum number of leaders of one client whose values are written.
const MAX_VALUES: usize = 64;
/// Timeout of the request that removes the record when the client ends.
const REMOVAL_TIMEOUT: Duration = Duration::from_millis(250);

/// Decides when to write or remove the client record, and does so on the renewal threads.
#[derive(Debug)]
pub(crate) struct ClientRecordWriter {
    context: Arc<Context>,
    workers: Arc<Workers>,
    releases: Arc<SharedLedger>,
    key: Arc<str>,
    schedule: Mutex<WriteSchedule>,
    /// Whether a waiter has woken the renewal threads for a write.
    is_requested: AtomicBool,
    /// Whether the waits named by the record have changed, or another client wants to read the
    /// waits.
    must_name_waits: AtomicBool,
    /// Values advertised by leaders of this client, by owner.
    values: Mutex<BTreeMap<String, Arc<str>>>,
}

/// When to write the client record next, and the state of the record on the server.
#[derive(Debug, Default)]
struct WriteSchedule {
    /// When to write the record, if needed then.
    due: Option<Instant>,
    /// Whether the record may be on the server.
    is_written: bool,
    /// Whether the record on the server may name waits.
    has_waits: bool,
    /// When the record was last written because of waits.
    waits_written: Option<Instant>,
    /// Whether the client was shut down: the record is removed, and not written again.
    has_ended: bool,
}

impl ClientRecordWriter {
    pub(crate) fn new(
        context: Arc<Context>,
        workers: Arc<Workers>,
        releases: Arc<SharedLedger>,
    ) -> Self {
        let key = client_record_key(&context.client.id);
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

    /// Adds the value of a leader of this client to the record, until `stop_advertising`. A renewal
    /// thread writes the record at once.
    pub(crate) fn advertise(&self, owner: &str, value: &Arc<str>, now: Instant) {
        self.values.lock().insert(owner.to_owned(), Arc::clone(value));
        self.schedule.lock().due = Some(now);
        self.workers.wake();
    }

    /// Removes the value of a former leader, with the next write of the record.
    pub(crate) fn stop_advertising(&self, owner: &str) {
        self.values.lock().remove(owner);
    }

    /// Requests a record because of a place in a queue on the server. A hold needs a record too,
    /// but wakes the renewal threads anyway.
    pub(crate) fn request(&self) {
        if !self.is_requested.swap(true, Ordering::Relaxed) {
            self.workers.wake();
        }
    }

    /// Requests another write of the record within moments: the named waits have changed, or
    /// another client wants to read the waits.
    pub(crate) fn name_waits(&self) {
        self.must_name_waits.store(true, Ordering::Relaxed);
        if !self.schedule.lock().has_ended {
            self.workers.with_worker(self.server(), |worker| worker.parker.unpark());
        }
    }

    /// Requests the removal of the record, after a shutdown of the client. Returns at once; a
    /// renewal thread removes the record.
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

    /// Writes the client record if needed and due, on the renewal thread of `server`. Returns when
    /// to call again; `None` if no time is known. After the client's end, removes the record
    /// instead.
    ///
    /// Only the thread of the record's server writes, so no other server delays the renewals of
    /// this server. Any other thread wakes the thread of the record's server.
    pub(crate) fn run(&self, server: ServerId, now: Instant) -> Option<Instant> {
        let is_here = self.server() == server;
        // In this order: the next record names a wait which is listed later.
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
            // No thread is woken for a record in memory, which is written with the first renewals.
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
                // Until a reply confirms a record without waits, the record may name waits.
                schedule.has_waits |= waits.is_some();
            }
        }
        if !is_here {
            // The thread of the record's server may not run yet.
            self.workers.with_worker(self.server(), |worker| worker.parker.unpark());
            return Some(now + DELAY);
        }
        let age = now.saturating_duration_since(self.context.client.started);
        let timeout = self.context.release_timeout();
        let timeout = if waits.is_some() { timeout.min(WAITS_TIMEOUT) } else { timeout };
        let field = waits.as_ref().map(|waits| waits.field.clone());
        let operation = WriteClientRecord { waits: field, ..self.record(age, LIFETIME) };
        self.send(server, operation, timeout, waits);
        if self.must_name_waits.load(Ordering::Relaxed) {
            return Some(now + WRITE_INTERVAL);
        }
        recovers.then_some(now + INTERVAL)
    }

    /// Removes the client record if `server` has the record, and ends all further writes. A failure
    /// is not retried: the record expires.
    pub(crate) fn remove(&self, server: ServerId) {
        let was_written = {
            let mut schedule = self.schedule.lock();
            schedule.has_ended = true;
            self.server() == server && std::mem::take(&mut schedule.is_written)
        };
        if was_written {
            let timeout = REMOVAL_TIMEOUT.min(self.context.release_timeout());
            self.send(server, self.record(Duration::ZERO, Duration::ZERO), timeout, None);
        }
    }

    /// Returns the server of the client record's key.
    fn server(&self) -> ServerId {
        self.context.store.server_of(&self.key)
    }

    /// Makes the request to write a client record without waits. Zero as `lifetime` removes the
    /// record.
    fn record(&self, age: Duration, lifetime: Duration) -> WriteClientRecord {
        let client = &self.context.client;
        let values = self.values.lock();
        let values = values.iter().map(|(owner, it)| (value_field(owner), Arc::clone(it)));
        WriteClientRecord {
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

    /// Sends `operation` to `server` and waits for the reply, for `timeout` at most. `waits` are
    /// the waits that the record names.
    fn send(
        &self,
        server: ServerId,
        operation: WriteClientRecord,
        timeout: Duration,
        waits: Option<NamedWaits>,
    ) {
        let mut call = RecordCall { writer: self, operation: Some(operation), timeout, waits };
        self.context.store.run_pipeline(server, &mut call);
    }

    /// Records that the server wrote the client record at `at`, by the server's clock, with
    /// `waits`.
    fn is_written(&self, waits: Option<&NamedWaits>, at: i64) {
        self.schedule.lock().has_waits = waits.is_some();
        // If the clock panics, the waits are named again at the next interval.
        if let (Some(waits), Some(now)) = (waits, catch_panic(|| self.context.clock.now())) {
            self.context.holds.long_waits.are_written(waits, at, now);
        }
    }
}

/// One write of the client record, as the only request of a pipeline.
struct RecordCall<'a> {
    writer: &'a ClientRecordWriter,
    operation: Option<WriteClientRecord>,
    timeout: Duration,
    waits: Option<NamedWaits>,
}

impl PipelineSource for RecordCall<'_> {
    type Operation = WriteClientRecord;
    type Tag = ();

    fn max_in_flight(&self) -> usize {
        1
    }

    fn next(&mut self) -> Option<PipelineRequest<WriteClientRecord, ()>> {
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
            // A failed write is repeated at the next interval, or the record expires. Waits are
            // named again sooner.
            Err(_) if self.writer.schedule.lock().has_waits => {
                self.writer.must_name_waits.store(true, Ordering::Relaxed);
            }
            Err(_) => {}
        }
    }
}
