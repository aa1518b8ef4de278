//! The ledger: one record for each release of a client, from its start until settled. Pure: time
//! and topology are arguments.
//!
//! A release begins before its hold is over for the rest of the process. Then a caller sends the
//! release, or the release is written and its reply is read later, or the release is queued for the
//! thread of its server. The stage of an entry says which thread acts next. Because an entry exists
//! until the reply is read, a shutdown knows of every release.
//!
//! One mutex around the ledger guards all entries. The alternative, lists in flight and a queue for
//! each server, needed an order between three mutexes, and releases moved between queues when a
//! hash slot moved.
//!
//! An acquire follows this client's own releases. A single try that is refused is repeated if a
//! release of its name had begun before its mark and was not settled by then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use crate::ledger::log::{AcknowledgedRelease, ReleaseLog};
use crate::ledger::release::{EndedHold, Release, ReleaseId, ReleaseOp, ReleaseSchedule};
use crate::model::kind::Kind;
use crate::model::name::LockName;
use crate::model::release_no::ReleaseNo;
use crate::ops::Released;
use crate::store::{Failure, ServerId};

/// The thread that acts next on a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The acquire: the owner waits in a fair lock's queue on the server, and is released unless
    /// the acquire is granted.
    InServerQueue,
    /// The thread that began the release, until there is an answer, or the release is queued or
    /// cancelled. After `Watchdog::end_in_background`: the renewal thread with the hold in
    /// `RenewalWorker::unguarded`.
    Sending,
    /// The sender while writing the release. Then the reader of the reply, which no thread waits
    /// for. The number of the release is in `UnreadReleases`, first in the list of the connection,
    /// then beside the reply.
    Unread,
    /// The thread of the server, when the release is due.
    Queued(ServerId),
    /// The thread of the server, after sending the release in its pass.
    InPass(ServerId),
}

/// The ledger's record of one release: the release, its stage, and its schedule.
#[derive(Debug)]
struct ReleaseEntry {
    release: Release,
    /// The hash of the name.
    hash: u64,
    stage: Stage,
    /// `Some` once the release is unread, queued or acknowledged.
    schedule: Option<ReleaseSchedule>,
    /// Whether the last answer of the server was a lasting refusal.
    refused: bool,
}

/// All releases of a client.
///
/// 1. An entry exists from `begin` until its release is cancelled, acknowledged past the deadline
///    of late copies, expired, or given up.
/// 2. Only `take`, `put_back` and `change` change entries and the fields derived from entries.
/// 3. An answer counts in `Sending`, `Unread` and `InPass`. A later answer is ignored.
/// 4. A release that began before a mark and was open then is outstanding at this mark, or was
///    settled since. A release refused for good counts as settled.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<ReleaseNo, Box<ReleaseEntry>>,
    // Derived from `entries`; tests compute these fields again.
    /// Releases by the hash of the name. Two names with one hash count as the same name, so an
    /// acquire may be repeated needlessly.
    by_name: BTreeSet<(u64, ReleaseNo)>,
    /// The queued releases of each server, by due time, then by number. So sending from a full
    /// queue costs no more than from a short queue.
    due: BTreeMap<ServerId, BTreeSet<(Instant, ReleaseNo)>>,
    counts: Counts,
    /// The releases that ended last, at most [`MAX_SETTLED`].
    settled: VecDeque<Settled>,
    /// Releases to be sent again if another server takes over.
    log: ReleaseLog,
    /// When the last replacement of a server was noticed.
    moved_at: Option<Instant>,
    /// The last number drawn.
    last: u64,
    hasher: RandomState,
    /// Releases given up: there was no room or no thread, the lease has expired, or the client has
    /// ended.
    pub(crate) abandoned: u64,
}

/// Sums over the entries, which the ledger updates with each change of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    in_server_queue: usize,
    unread: usize,
    /// Releases queued or in a pass, and the length of their names.
    queued: usize,
    name_bytes: usize,
}

/// A settlement: a release that ended a short time ago, or is known to be refused for good.
#[derive(Clone, Copy, Debug)]
struct Settled {
    /// The hash of the release's name.
    hash: u64,
    /// The number of the release, drawn when the release began.
    begun: ReleaseNo,
    /// The number drawn when the release was settled.
    at: ReleaseNo,
}

/// The answer to a request for one or several releases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleaseAnswer<'a> {
    pub(crate) sent_at: Instant,
    pub(crate) reply: Result<&'a Released, &'a Failure>,
    /// Whether an earlier copy of the request may have run.
    pub(crate) has_copies: bool,
}

/// The effect of an answer: the finding about the hold, and whether to queue the release.
#[derive(Debug, Default)]
pub(crate) struct AfterAnswer {
    /// Whether this is the first acknowledgement of the release.
    pub(crate) first: bool,
    /// The hold, if the answer tells whether the server had the hold.
    pub(crate) ended: Option<EndedHold>,
    /// Whether the release must be queued now. Until then the stage is unchanged, and an unread
    /// release counts as unread.
    pub(crate) must_queue: bool,
}

/// A summary of the unacknowledged releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacknowledged {
    pub(crate) is_empty: bool,
    /// Whether threads are sending some of the releases, or queued releases were not tried yet.
    pub(crate) has_untried: bool,
    /// Whether some release does not depend on a server without a thread, and so may still be sent.
    pub(crate) may_end: bool,
}

/// The maximum number of remembered settlements. An acquire during which more releases are settled
/// is repeated once.
const MAX_SETTLED: usize = 256;
/// The maximum number of releases queued or in a pass. A shutdown queues all holds of the client,
/// which may be a million locks. A longer queue means that a server has been away for long. Then
/// leases expire.
const MAX_QUEUED: usize = 1 << 20;
/// The maximum length of all queued names: a million names may have 64 bytes each.
const MAX_NAME_BYTES: usize = 64 << 20;
/// The maximum number of releases sent together. A renewal that becomes due meanwhile waits for the
/// pass, about a millisecond.
pub(crate) const MAX_PER_PASS: usize = 100;

impl ReleaseEntry {
    /// Returns the server and the due time of a queued release; `None` in any other stage.
    fn due(&self) -> Option<(ServerId, Instant)> {
        match (self.stage, &self.schedule) {
            (Stage::Queued(server), Some(schedule)) => Some((server, schedule.due)),
            _ => None,
        }
    }

    /// Returns whether a server has acknowledged the release. Such a release stays in the ledger
    /// only to be sent again.
    fn is_acknowledged(&self) -> bool {
        self.schedule.as_ref().is_some_and(|schedule| schedule.acknowledged)
    }

    /// Returns whether the release may still end the hold that refuses an acquire. Not so after an
    /// acknowledgement, or after a lasting refusal: the hold then stays.
    fn is_outstanding(&self) -> bool {
        self.stage != Stage::InServerQueue && !self.is_acknowledged() && !self.refused
    }

    /// Returns whether the release is due at `now`, or is not queued.
    fn is_tried_at(&self, now: Instant) -> bool {
        self.due().is_none_or(|(_, due)| due <= now)
    }

    /// Returns the schedule. Creates a schedule due at `due` if the release has none.
    fn schedule(&mut self, due: Instant) -> &mut ReleaseSchedule {
        let Release { lifetime, late_copy_deadline, .. } = self.release;
        let new = || ReleaseSchedule::new(due, lifetime, late_copy_deadline);
        self.schedule.get_or_insert_with(new)
    }

    /// Returns the length of the release's name.
    fn name_bytes(&self) -> usize {
        self.release.id.name.as_str().len()
    }
}

impl Counts {
    /// Returns the counts of a single entry: the amounts that the entry adds to the sums.
    fn of(entry: &ReleaseEntry) -> Self {
        let mut counts = Self::default();
        match entry.stage {
            Stage::InServerQueue => counts.in_server_queue = 1,
            Stage::Sending => {}
            Stage::Unread => counts.unread = 1,
            Stage::Queued(_) | Stage::InPass(_) => {
                counts.queued = 1;
                counts.name_bytes = entry.name_bytes();
            }
        }
        counts
    }

    /// Combines each sum of `self` with the same sum of `other` by `with`: an addition or a
    /// subtraction.
    fn zip(self, other: Self, with: impl Fn(usize, usize) -> usize) -> Self {
        Self {
            in_server_queue: with(self.in_server_queue, other.in_server_queue),
            unread: with(self.unread, other.unread),
            queued: with(self.queued, other.queued),
            name_bytes: with(self.name_bytes, other.name_bytes),
        }
    }
}

// Changes of entries.
impl Ledger {
    /// Draws the next number, greater than all numbers drawn before.
    fn draw(&mut self) -> ReleaseNo {
        self.last += 1;
        ReleaseNo(self.last)
    }

    /// Adds an entry to the fields that depend on its stage: `due` and `counts`.
    fn derive(&mut self, no: ReleaseNo, entry: &ReleaseEntry) {
        if let Some((server, due)) = entry.due() {
            self.due.entry(server).or_default().insert((due, no));
        }
        self.counts = self.counts.zip(Counts::of(entry), usize::saturating_add);
    }

    /// Removes an entry from `due` and `counts`: the reverse of `derive`, called before the entry
    /// changes.
    fn underive(&mut self, no: ReleaseNo, entry: &ReleaseEntry) {
        if let Some((server, due)) = entry.due()
            && let Some(of_server) = self.due.get_mut(&server)
        {
            of_server.remove(&(due, no));
            if of_server.is_empty() {
                self.due.remove(&server);
            }
        }
        self.counts = self.counts.zip(Counts::of(entry), usize::saturating_sub);
    }

    /// Takes an entry out of the ledger and of all derived fields. Returns `None` if the release
    /// has ended.
    fn take(&mut self, no: ReleaseNo) -> Option<Box<ReleaseEntry>> {
        let entry = self.entries.remove(&no)?;
        self.by_name.remove(&(entry.hash, no));
        self.underive(no, &entry);
        Some(entry)
    }

    /// Inserts an entry, new or taken before, into the ledger and all derived fields.
    fn put_back(&mut self, no: ReleaseNo, entry: Box<ReleaseEntry>) {
        self.by_name.insert((entry.hash, no));
        self.derive(no, &entry);
        self.entries.insert(no, entry);
    }

    /// Changes an entry in its place, and updates `due` and `counts`. Returns the result of
    /// `change`; `None` if the release has ended.
    fn change<T>(
        &mut self,
        no: ReleaseNo,
        change: impl FnOnce(&mut ReleaseEntry) -> T,
    ) -> Option<T> {
        let mut entry = self.entries.remove(&no)?;
        self.underive(no, &entry);
        let result = change(&mut entry);
        self.derive(no, &entry);
        self.entries.insert(no, entry);
        Some(result)
    }

    /// Ends a release: takes its entry and records the settlement. Returns `None` if the release
    /// has ended before.
    fn remove(&mut self, no: ReleaseNo) -> Option<Box<ReleaseEntry>> {
        let entry = self.take(no)?;
        self.note_settled(entry.hash, no);
        Some(entry)
    }

    /// Records the settlement of the release `begun`, whose name has the hash `hash`. Forgets the
    /// oldest settlement if there are [`MAX_SETTLED`].
    fn note_settled(&mut self, hash: u64, begun: ReleaseNo) {
        if self.settled.len() == MAX_SETTLED {
            self.settled.pop_front();
        }
        let at = self.draw();
        self.settled.push_back(Settled { hash, begun, at });
    }
}

// Operations of callers.
impl Ledger {
    /// Adds an entry for a release, and returns the number of the entry. `stage` says which thread
    /// acts next. The release ends a hold that is about to end, or, in [`Stage::InServerQueue`],
    /// the wait of an owner in a fair lock's queue on the server.
    pub(crate) fn begin(&mut self, release: Release, stage: Stage) -> ReleaseNo {
        let (no, hash) = (self.draw(), self.hasher.hash_one(&release.id.name));
        let entry = ReleaseEntry { release, hash, stage, schedule: None, refused: false };
        self.put_back(no, Box::new(entry));
        no
    }

    /// Ends a release that is not needed, unless queued or in a pass. Returns whether the release
    /// ended.
    pub(crate) fn cancel(&mut self, no: ReleaseNo) -> bool {
        self.is_in_flight(no) && self.remove(no).is_some()
    }

    /// Returns whether a thread other than a server's thread acts next on the release. `false` for
    /// a release that is queued, in a pass, or has ended.
    fn is_in_flight(&self, no: ReleaseNo) -> bool {
        let entry = self.entries.get(&no);
        entry.is_some_and(|entry| !matches!(entry.stage, Stage::Queued(_) | Stage::InPass(_)))
    }

    /// Marks a release as unread, just before its request is written at `sent_at`.
    pub(crate) fn set_unread(&mut self, no: ReleaseNo, sent_at: Instant) {
        self.change(no, |entry| {
            entry.schedule(sent_at);
            entry.stage = Stage::Unread;
        });
    }

    /// Returns an unwritten release from `Unread` to `Sending`, so the caller acts next. No effect
    /// if another thread has queued the release meanwhile.
    pub(crate) fn not_written(&mut self, no: ReleaseNo) {
        self.change(no, |entry| {
            if entry.stage == Stage::Unread {
                entry.stage = Stage::Sending;
            }
        });
    }

    /// Queues every release with an unread reply for the server that `server_of` names.
    pub(crate) fn queue_unread(&mut self, server_of: impl Fn(&LockName) -> ServerId) {
        let unread: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.stage == Stage::Unread)
            .filter_map(|(no, entry)| {
                Some((*no, server_of(&entry.release.id.name), entry.schedule?.due))
            })
            .collect();
        for (no, server, due) in unread {
            self.queue(no, server, due);
        }
    }

    /// Queues a release in flight for `server`, due at `due` unless already scheduled. No effect on
    /// any other release.
    ///
    /// Returns `false` if the queue has no room: the release ends as abandoned, and its lease has
    /// to expire.
    pub(crate) fn queue(&mut self, no: ReleaseNo, server: ServerId, due: Instant) -> bool {
        if !self.is_in_flight(no) {
            return true;
        }
        let Some(mut entry) = self.take(no) else { return true };
        let Counts { queued, name_bytes, .. } = self.counts;
        let bytes = name_bytes.saturating_add(entry.name_bytes());
        let has_room = queued < MAX_QUEUED && bytes <= MAX_NAME_BYTES;
        if has_room {
            entry.schedule(due);
            entry.stage = Stage::Queued(server);
            self.put_back(no, entry);
        } else {
            self.note_settled(entry.hash, no);
            self.abandoned += 1;
        }
        has_room
    }

    /// Ends a release as abandoned, because no thread can send the release.
    pub(crate) fn give_up(&mut self, no: ReleaseNo) {
        self.abandoned += u64::from(self.remove(no).is_some());
    }

    /// Applies an answer at `now` to a release: ends the release, or retains the entry to be sent
    /// again. `alone`: the request contained only this release.
    pub(crate) fn answered(
        &mut self,
        no: ReleaseNo,
        alone: bool,
        now: Instant,
        answer: ReleaseAnswer<'_>,
    ) -> AfterAnswer {
        let ReleaseAnswer { sent_at, reply, has_copies } = answer;
        // The next stage if the answer does not settle the release. Unchanged if the caller must
        // queue the release; queued after a pass.
        let (stage, must_queue) = match self.entries.get(&no).map(|entry| entry.stage) {
            Some(stage @ (Stage::Sending | Stage::Unread)) => (stage, true),
            Some(Stage::InPass(server)) => (Stage::Queued(server), false),
            _ => return AfterAnswer::default(),
        };
        let Some(mut entry) = self.take(no) else { return AfterAnswer::default() };
        let mut answered = AfterAnswer { must_queue, ..AfterAnswer::default() };
        let released = match reply {
            Ok(released) if alone || released.found.is_released() => released,
            // One of several permits is missing, so the server released none. Each is released
            // separately.
            Ok(_) => {
                entry.stage = stage;
                self.put_back(no, entry);
                return answered;
            }
            Err(failure) => {
                if has_copies || failure.may_have_run() {
                    // From now on no answer tells whether the hold was lost.
                    entry.release.ended = None;
                }
                let is_permit = entry.release.id.kind.is_none_or(|kind| kind == Kind::Permit);
                if is_permit && failure.is_wrong_key() {
                    // The key has another type, and contains no permits.
                    self.note_settled(entry.hash, no);
                    return AfterAnswer::default();
                }
                if must_queue {
                    // Another attempt follows at once.
                    entry.stage = stage;
                    self.put_back(no, entry);
                    return answered;
                }
                entry.refused =
                    matches!(failure, Failure::Refused { .. }) && !failure.is_transient();
                if entry.refused {
                    self.note_settled(entry.hash, no);
                }
                self.retry_later(no, now, stage, entry);
                return AfterAnswer::default();
            }
        };
        // The release is acknowledged.
        answered.first = !entry.is_acknowledged();
        answered.ended = entry.release.ended.take().filter(|_| alone);
        let is_kept = entry.release.keeps_key(sent_at) && answered.first;
        entry.release.stop_keeping();
        entry.refused = false;
        self.note_settled(entry.hash, no);
        let schedule = entry.schedule(now);
        let mut again = schedule.acknowledge(now, released.at);
        // Never repeat the release of permits without an owner, or of a hold whose key is retained.
        if entry.release.id.kind.is_some() && !is_kept && !again {
            let Release { id, lifetime, .. } = &entry.release;
            let release = AcknowledgedRelease::of_hold(id.clone(), *lifetime);
            // The acknowledging server may have been replaced meanwhile.
            again = self.log(sent_at, release).is_some();
        }
        if again {
            entry.stage = stage;
            self.put_back(no, entry);
        } else {
            answered.must_queue = false;
        }
        answered
    }
}

// Operations of a server's thread.
impl Ledger {
    /// Moves up to `max` due releases of `server` from the queue into a pass of its renewal thread.
    /// Returns each with the operation to send now. A release without an operation is not returned.
    pub(crate) fn begin_pass(
        &mut self,
        server: ServerId,
        now: Instant,
        max: usize,
    ) -> Vec<(ReleaseNo, LockName, ReleaseOp)> {
        let due: Vec<ReleaseNo> = self.due_at(server, now).take(max).collect();
        let send = |ledger: &mut Self, no: ReleaseNo| {
            ledger.change(no, |entry| {
                entry.stage = Stage::InPass(server);
                let operation = entry.release.operation(now)?;
                Some((no, entry.release.id.name.clone(), operation))
            })?
        };
        due.into_iter().filter_map(|no| send(self, no)).collect()
    }

    /// Queues the unanswered releases of a pass again, whose requests may have run. Releases whose
    /// leases have expired end as abandoned.
    pub(crate) fn end_pass(&mut self, now: Instant, sent: &[ReleaseNo]) {
        for no in sent {
            let stage = self.entries.get(no).map(|entry| entry.stage);
            if let Some(Stage::InPass(server)) = stage
                && let Some(mut entry) = self.take(*no)
            {
                entry.release.ended = None;
                self.retry_later(*no, now, Stage::Queued(server), entry);
            }
        }
    }

    /// Puts `entry` back in the stage `queued`, due after a pause. If the lease has expired, ends
    /// the release as abandoned instead.
    fn retry_later(
        &mut self,
        no: ReleaseNo,
        now: Instant,
        queued: Stage,
        mut entry: Box<ReleaseEntry>,
    ) {
        if entry.schedule(now).fail(now) {
            entry.stage = queued;
            self.put_back(no, entry);
        } else {
            self.note_settled(entry.hash, no);
            self.abandoned += 1;
        }
    }

    /// Ends all releases queued for `server`, because the client ends. Releases that were never
    /// acknowledged count as abandoned.
    pub(crate) fn abandon(&mut self, server: ServerId) {
        for (_, no) in self.due.get(&server).cloned().unwrap_or_default() {
            let is_lost = |entry: Box<ReleaseEntry>| u64::from(!entry.is_acknowledged());
            self.abandoned += self.remove(no).map_or(0, is_lost);
        }
    }

    /// Among the next `max` due releases of `server`, returns the releases whose names are on
    /// another server now, each with the other server. Moves nothing.
    pub(crate) fn moved(
        &self,
        server: ServerId,
        now: Instant,
        max: usize,
        server_of: impl Fn(&LockName) -> ServerId,
    ) -> Vec<(ReleaseNo, ServerId)> {
        let due = self.due_at(server, now).take(max);
        let with_server = |no| Some((no, server_of(&self.entries.get(&no)?.release.id.name)));
        due.filter_map(with_server).filter(|(_, of)| *of != server).collect()
    }

    /// Moves a queued release to `server`. No effect on a release in another stage.
    pub(crate) fn move_to(&mut self, no: ReleaseNo, server: ServerId) {
        self.change(no, |entry| {
            if let Stage::Queued(queued_for) = &mut entry.stage {
                *queued_for = server;
            }
        });
    }

    /// Returns the queued releases of `server` with their due times, the earliest first.
    fn due_of(&self, server: ServerId) -> impl DoubleEndedIterator<Item = (Instant, ReleaseNo)> {
        self.due.get(&server).into_iter().flatten().copied()
    }

    /// Returns the queued releases of `server` that are due at `now`, the earliest first.
    fn due_at(&self, server: ServerId, now: Instant) -> impl Iterator<Item = ReleaseNo> {
        self.due_of(server).take_while(move |(due, _)| *due <= now).map(|(_, no)| no)
    }

    /// Returns when the next queued release of `server` is due; `None` if none is queued.
    pub(crate) fn next_due(&self, server: ServerId) -> Option<Instant> {
        self.due_of(server).next().map(|(due, _)| due)
    }

    /// Returns when the last unacknowledged release queued for `server` is due; `None` if there is
    /// none.
    pub(crate) fn last_due(&self, server: ServerId) -> Option<Instant> {
        let is_open =
            |no: &ReleaseNo| self.entries.get(no).is_some_and(|one| !one.is_acknowledged());
        self.due_of(server).rfind(|(_, no)| is_open(no)).map(|(due, _)| due)
    }
}

// Operations of a failover.
impl Ledger {
    /// Logs an acknowledged release. Returns the release instead if a server was replaced after
    /// `sent_at`: the release must then be sent again.
    #[must_use]
    pub(crate) fn log(
        &mut self,
        sent_at: Instant,
        release: AcknowledgedRelease,
    ) -> Option<AcknowledgedRelease> {
        if self.moved_at.is_some_and(|moved_at| sent_at < moved_at) {
            return Some(release);
        }
        self.log.push(sent_at, release);
        None
    }

    /// Records at `now` that a server was replaced. Removes from the log, and returns, the releases
    /// for which `moved` says that their server was replaced.
    pub(crate) fn server_moved(
        &mut self,
        now: Instant,
        moved: impl Fn(&ReleaseId) -> bool,
    ) -> Vec<AcknowledgedRelease> {
        self.moved_at = Some(now);
        self.log.take(now, moved)
    }

    /// Begins an acknowledged release again, due at `due`, for a server that may not know of the
    /// release. The entry counts as acknowledged from its begin. Returns the new number.
    pub(crate) fn begin_again(&mut self, release: AcknowledgedRelease, due: Instant) -> ReleaseNo {
        let no = self.begin(release.into_release(), Stage::Sending);
        self.change(no, |entry| entry.schedule(due).acknowledged = true);
        no
    }
}

// Queries.
impl Ledger {
    /// Returns the releases of a name, of any owner, in the order of their begin.
    fn of_name<'a>(
        &'a self,
        name: &'a LockName,
    ) -> impl Iterator<Item = (ReleaseNo, &'a ReleaseEntry)> + 'a {
        let hash = self.hasher.hash_one(name);
        self.by_name
            .range((hash, ReleaseNo(0))..=(hash, ReleaseNo(u64::MAX)))
            .filter_map(|(_, no)| Some((*no, &**self.entries.get(no)?)))
            .filter(move |(_, entry)| entry.release.id.name == *name)
    }

    /// Returns the mark of an acquire that is sent now: greater than the number of every release
    /// begun before, and not greater than any later number.
    pub(crate) fn mark(&self) -> ReleaseNo {
        ReleaseNo(self.last + 1)
    }

    /// Returns the operation to send at `now` for a release. `None` once the release has ended, or
    /// if the entry is a mere note that a release will follow.
    pub(crate) fn operation(&self, no: ReleaseNo, now: Instant) -> Option<ReleaseOp> {
        self.entries.get(&no)?.release.operation(now)
    }

    /// Returns the name of a release. `None` once the release has ended.
    pub(crate) fn name(&self, no: ReleaseNo) -> Option<LockName> {
        self.entries.get(&no).map(|entry| entry.release.id.name.clone())
    }

    /// Returns whether the release is unacknowledged and has not ended.
    pub(crate) fn is_open(&self, no: ReleaseNo) -> bool {
        self.entries.get(&no).is_some_and(|entry| !entry.is_acknowledged())
    }

    /// Returns whether a release of this name had begun at the mark and may still end the hold:
    /// sent and not answered, or queued and not refused. With `tried_by`, releases queued for later
    /// than this time do not count, as an attempt has failed.
    pub(crate) fn is_outstanding(
        &self,
        name: &LockName,
        mark: ReleaseNo,
        tried_by: Option<Instant>,
    ) -> bool {
        self.of_name(name).take_while(|(no, _)| *no < mark).any(|(_, entry)| {
            entry.is_outstanding() && tried_by.is_none_or(|now| entry.is_tried_at(now))
        })
    }

    /// Returns whether a release of this name may have been [outstanding](Self::is_outstanding) at
    /// the mark, and was settled since. Call this function once no release is outstanding.
    pub(crate) fn was_settled(&self, name: &LockName, mark: ReleaseNo) -> bool {
        // If the list is full and its oldest entry was settled after the mark, a release dropped
        // from the list may have had this name.
        let forgot = self.settled.len() == MAX_SETTLED
            && self.settled.front().is_some_and(|oldest| oldest.at > mark);
        let hash = self.hasher.hash_one(name);
        let is_it = |other: &Settled| other.at >= mark && other.begun < mark && other.hash == hash;
        forgot || self.settled.iter().any(is_it)
    }

    /// Returns whether the last answer to some release of this name was a lasting refusal.
    pub(crate) fn has_refused(&self, name: &LockName) -> bool {
        self.of_name(name).any(|(_, entry)| entry.refused)
    }

    /// Returns whether the ledger has a release of this name, of any owner and in any stage.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        self.of_name(name).next().is_some()
    }

    /// Returns whether any release is queued for this server.
    pub(crate) fn has_queued(&self, server: ServerId) -> bool {
        self.due.contains_key(&server)
    }

    /// Returns whether an owner of this client is in a queue on the server.
    pub(crate) fn has_waiters(&self) -> bool {
        self.counts.in_server_queue > 0
    }

    /// Returns the number of releases with an unread reply.
    pub(crate) fn unread(&self) -> usize {
        self.counts.unread
    }

    /// Returns the number of releases queued or in a pass.
    pub(crate) fn queued(&self) -> usize {
        self.counts.queued
    }

    /// Summarizes the unacknowledged releases at `now`. The servers in `dead` have no thread.
    pub(crate) fn unacknowledged(&self, now: Instant, dead: &[ServerId]) -> Unacknowledged {
        let mut all = Unacknowledged { is_empty: true, has_untried: false, may_end: false };
        for entry in self.entries.values().filter(|entry| !entry.is_acknowledged()) {
            let is_dead = match entry.stage {
                Stage::Queued(server) | Stage::InPass(server) => dead.contains(&server),
                _ => false,
            };
            all.is_empty = false;
            all.has_untried |= entry.is_tried_at(now);
            all.may_end |= !is_dead;
            if all.has_untried && all.may_end {
                break;
            }
        }
        all
    }

    /// Returns the targets of the unacknowledged releases.
    pub(crate) fn unacknowledged_ids(&self) -> Vec<ReleaseId> {
        let open = self.entries.values().filter(|entry| !entry.is_acknowledged());
        open.map(|entry| entry.release.id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::hold::hold::Hold;
    use crate::ledger::release::{GRACE, MAX_PAUSE, ReleaseSchedule};
    use crate::model::clock::origin;
    use crate::model::lease::Lease;
    use crate::model::owner::{ClientId, LocalHolder};
    use crate::ops::Found;
    use crate::ops::by_kind::HoldId;
    use crate::ops::value::ServerTime;

    const HERE: ServerId = ServerId(0);
    const THERE: ServerId = ServerId(1);
    const LEASE: Duration = Duration::from_secs(30);

    fn id(name: &str) -> ReleaseId {
        let (name, owner) = (LockName::parse(name).unwrap(), ClientId::random().next_owner());
        ReleaseId { kind: Some(Kind::Reentrant), name, owner }
    }

    /// The release of a lock that lasts for [`LEASE`].
    fn release(name: &str, late_copy_deadline: Option<i64>) -> Release {
        Release::new(id(name), None, LEASE, late_copy_deadline.map(ServerTime))
    }

    fn queue(ledger: &mut Ledger, release: Release, due: Instant) -> bool {
        let no = ledger.begin(release, Stage::Sending);
        ledger.queue(no, HERE, due)
    }

    fn ledger_of_one(now: Instant, late_copy_deadline: Option<i64>) -> Ledger {
        let mut ledger = Ledger::default();
        assert!(queue(&mut ledger, release("a", late_copy_deadline), now));
        ledger
    }

    /// Sends the only release that is due.
    fn send_one(ledger: &mut Ledger, now: Instant) -> ReleaseNo {
        let pass = ledger.begin_pass(HERE, now, 9);
        assert_eq!(pass.len(), 1);
        pass[0].0
    }

    fn answer<'a>(sent_at: Instant, reply: Result<&'a Released, &'a Failure>) -> ReleaseAnswer<'a> {
        ReleaseAnswer { sent_at, reply, has_copies: false }
    }

    fn acknowledge(ledger: &mut Ledger, no: ReleaseNo, now: Instant, at: i64) -> AfterAnswer {
        let released = Released::new(Found::Own, ServerTime(at));
        ledger.answered(no, true, now, answer(now, Ok(&released)))
    }

    fn fail(ledger: &mut Ledger, no: ReleaseNo, now: Instant, failure: &Failure) -> AfterAnswer {
        ledger.answered(no, true, now, answer(now, Err(failure)))
    }

    fn open(ledger: &Ledger) -> usize {
        ledger.unacknowledged_ids().len()
    }

    fn refusal() -> Failure {
        Failure::Refused { code: "NOPERM".into(), message: String::new() }
    }

    #[test]
    fn an_acknowledged_release_is_done() {
        let now = origin();
        let mut ledger = ledger_of_one(now, None);
        let no = send_one(&mut ledger, now);
        assert_eq!((ledger.queued(), open(&ledger)), (1, 1), "still pending");
        acknowledge(&mut ledger, no, now, 5);
        ledger.end_pass(now, &[no]);
        assert_eq!((ledger.queued(), open(&ledger)), (0, 0));
    }

    #[test]
    fn a_release_is_due_again_after_the_acquires_not_after() {
        let now = origin();
        let mut ledger = ledger_of_one(now, Some(1000));
        let no = send_one(&mut ledger, now);
        acknowledge(&mut ledger, no, now, 400);
        assert_eq!(open(&ledger), 0);
        let again = now + Duration::from_millis(601);
        assert_eq!(ledger.next_due(HERE), Some(again));
        let no = send_one(&mut ledger, again);
        acknowledge(&mut ledger, no, again, 1001);
        assert_eq!(ledger.queued(), 0);
    }

    #[test]
    fn a_release_ends_with_its_lease_whatever_the_servers_time() {
        for at in [i64::MIN, -1, 0, i64::MAX - 1] {
            let now = origin();
            let expires = now + LEASE + GRACE;
            let mut ledger = ledger_of_one(now, Some(i64::MAX));
            let no = send_one(&mut ledger, now);
            acknowledge(&mut ledger, no, now, at);
            assert!(ledger.next_due(HERE).is_some_and(|due| due <= expires), "{at}");
            let no = send_one(&mut ledger, expires);
            acknowledge(&mut ledger, no, expires, at);
            assert_eq!((ledger.queued(), ledger.abandoned), (0, 0), "{at}");
        }
    }

    #[test]
    fn an_unanswered_release_is_retried_until_its_lease_has_ended() {
        let mut now = origin();
        let end = now + Duration::from_secs(43);
        let mut ledger = ledger_of_one(now, None);
        let mut tries = 0;
        while now < end {
            for (no, ..) in ledger.begin_pass(HERE, now, 9) {
                tries += 1;
                fail(&mut ledger, no, now, &Failure::Closed);
            }
            now += Duration::from_millis(50);
        }
        assert_eq!((ledger.queued(), ledger.abandoned), (0, 1));
        assert!((20..40).contains(&tries), "{tries} tries");
    }

    #[test]
    fn a_round_that_is_cut_short_leaves_its_releases_queued() {
        let now = origin();
        let mut ledger = ledger_of_one(now, None);
        let no = send_one(&mut ledger, now);
        ledger.end_pass(now, &[no]);
        assert_eq!((ledger.queued(), open(&ledger)), (1, 1));
        assert!(ledger.next_due(HERE).is_some_and(|due| due > now && due <= now + MAX_PAUSE));
    }

    #[test]
    fn releases_are_sent_in_the_order_in_which_they_are_due() {
        let now = origin();
        let mut ledger = Ledger::default();
        for (name, millis) in [("c", 20), ("a", 10), ("d", 20), ("b", 10), ("e", 30)] {
            let due = now + Duration::from_millis(millis);
            assert!(queue(&mut ledger, release(name, None), due));
        }
        let mut sent = |millis: u64, max: usize| {
            let now = now + Duration::from_millis(millis);
            let pass = ledger.begin_pass(HERE, now, max);
            for (no, ..) in &pass {
                acknowledge(&mut ledger, *no, now, 5);
            }
            pass.iter().map(|(_, name, _)| name.as_str().to_owned()).collect::<String>()
        };
        assert_eq!(sent(9, 9), "");
        assert_eq!(sent(20, 3), "abc");
        assert_eq!(sent(20, 3), "d");
        assert_eq!(sent(40, 3), "e");
    }

    #[test]
    fn the_names_that_are_queued_are_bounded_in_bytes() {
        let now = origin();
        let mut ledger = Ledger::default();
        let long = "x".repeat(64 * 1024);
        for _ in 0..1024 {
            assert!(queue(&mut ledger, release(&long, None), now));
        }
        assert!(!queue(&mut ledger, release("y", None), now));
        assert_eq!((ledger.queued(), ledger.abandoned), (1024, 1));
        let (no, ..) = ledger.begin_pass(HERE, now, 1).remove(0);
        acknowledge(&mut ledger, no, now, 5);
        assert!(queue(&mut ledger, release("y", None), now));
    }

    #[test]
    fn abandon_counts_only_unacknowledged_releases() {
        let now = origin();
        let mut ledger = ledger_of_one(now, Some(1000));
        let no = send_one(&mut ledger, now);
        acknowledge(&mut ledger, no, now, 400);
        assert!(queue(&mut ledger, release("b", None), now));
        ledger.abandon(HERE);
        assert_eq!((ledger.queued(), ledger.abandoned), (0, 1));
    }

    #[test]
    fn release_begun_at_the_mark_is_not_outstanding_at_the_mark() {
        let (mut ledger, name) = (Ledger::default(), LockName::parse("a").unwrap());
        let mark = ledger.mark();
        let no = ledger.begin(release("a", None), Stage::Sending);
        assert_eq!(no, mark);
        assert!(!ledger.is_outstanding(&name, mark, None));
        assert!(ledger.is_outstanding(&name, ledger.mark(), None));
    }

    #[test]
    fn releases_queued_or_in_a_round_of_a_dead_server_may_not_end() {
        let now = origin();
        let mut ledger = ledger_of_one(now, None);
        let left = |ledger: &Ledger, dead: &[ServerId]| ledger.unacknowledged(now, dead);
        let expected = |may_end| Unacknowledged { is_empty: false, has_untried: true, may_end };
        for in_pass in [false, true] {
            if in_pass {
                send_one(&mut ledger, now);
            }
            assert_eq!(left(&ledger, &[HERE]), expected(false), "in a pass: {in_pass}");
            assert_eq!(left(&ledger, &[THERE]), expected(true), "in a pass: {in_pass}");
        }
        // Not so the release of a caller, which has a thread of its own.
        ledger.begin(release("b", None), Stage::Sending);
        assert_eq!(left(&ledger, &[HERE]), expected(true));
    }

    #[test]
    fn lock_counts_as_settled_after_more_settlements_than_stored() {
        let now = origin();
        let mut ledger = ledger_of_one(now, None);
        let name = LockName::parse("a").unwrap();
        let mark = ledger.mark();
        let no = send_one(&mut ledger, now);
        acknowledge(&mut ledger, no, now, 5);
        assert!(ledger.was_settled(&name, mark));
        for _ in 0..=MAX_SETTLED {
            let other = ledger.begin(release("b", None), Stage::Sending);
            assert!(ledger.cancel(other));
        }
        assert!(ledger.was_settled(&name, mark), "perhaps: it is forgotten");
        assert!(!ledger.was_settled(&name, ledger.mark()));
    }

    #[test]
    fn after_a_copy_may_have_run_no_answer_tells_of_a_loss() {
        let now = origin();
        let id = HoldId {
            kind: Kind::Reentrant,
            name: LockName::parse("a").unwrap(),
            owner: ClientId::random().next_owner(),
        };
        let (holder, lease) = (LocalHolder::current_thread(), Lease::new(LEASE).unwrap());
        let hold = Arc::new(Hold::new(id, holder, lease, true, now, None));
        let nothing = Released::new(Found::Nothing, ServerTime(5));
        let unsent = refusal();
        for has_copies in [false, true] {
            let mut ledger = Ledger::default();
            let release = Release::of_hold(&hold, LEASE).ending(&hold, None);
            let no = ledger.begin(release, Stage::Sending);
            let failed = ReleaseAnswer { sent_at: now, reply: Err(&unsent), has_copies };
            assert!(ledger.answered(no, true, now, failed).must_queue);
            assert!(ledger.queue(no, HERE, now));
            send_one(&mut ledger, now);
            let answered = ledger.answered(no, true, now, answer(now, Ok(&nothing)));
            assert_eq!(answered.ended.is_none(), has_copies);
        }
    }

    /// What the ledger is to be, as a list.
    #[derive(Clone)]
    struct Naive {
        no: ReleaseNo,
        id: ReleaseId,
        late_copy_deadline: Option<ServerTime>,
        stage: Stage,
        schedule: Option<ReleaseSchedule>,
        refused: bool,
    }

    impl Naive {
        fn is_open(&self) -> bool {
            self.schedule.is_none_or(|schedule| !schedule.acknowledged)
        }

        fn is_outstanding(&self) -> bool {
            self.stage != Stage::InServerQueue && self.is_open() && !self.refused
        }

        fn is_in_flight(&self) -> bool {
            !matches!(self.stage, Stage::Queued(_) | Stage::InPass(_))
        }

        fn schedule(&mut self, due: Instant) -> &mut ReleaseSchedule {
            let new = || ReleaseSchedule::new(due, LEASE, self.late_copy_deadline);
            self.schedule.get_or_insert_with(new)
        }

        /// Whether it stays, and whether it is logged.
        fn answer(
            &mut self,
            (sent_at, now): (Instant, Instant),
            moved_at: Option<Instant>,
            reply: Result<&Released, &Failure>,
        ) -> (bool, bool) {
            let in_flight = self.is_in_flight();
            self.stage = if in_flight { self.stage } else { Stage::Queued(HERE) };
            match reply {
                Ok(released) if released.found == Found::Own => {
                    self.refused = false;
                    let again = self.schedule(now).acknowledge(now, released.at);
                    let is_current = moved_at.is_none_or(|moved_at| moved_at <= sent_at);
                    (again || !is_current, !again && is_current)
                }
                Ok(_) => (true, false),
                Err(failure) => {
                    if !in_flight {
                        self.refused = matches!(failure, Failure::Refused { .. });
                    }
                    (in_flight || self.schedule(now).fail(now), false)
                }
            }
        }
    }

    /// What is derived from the entries, computed again.
    fn check_derived(ledger: &Ledger) {
        let (mut by_name, mut counts) = (BTreeSet::new(), Counts::default());
        let mut due: BTreeMap<ServerId, BTreeSet<(Instant, ReleaseNo)>> = BTreeMap::new();
        for (no, entry) in &ledger.entries {
            by_name.insert((ledger.hasher.hash_one(&entry.release.id.name), *no));
            counts = counts.zip(Counts::of(entry), |one, other| one + other);
            if let Stage::Queued(server) = entry.stage {
                due.entry(server).or_default().insert((entry.schedule.unwrap().due, *no));
            }
        }
        assert_eq!((&ledger.by_name, &ledger.due, ledger.counts), (&by_name, &due, counts));
    }

    /// Random steps, seeds from 0. `LEDGER_SEEDS` says how many.
    #[test]
    fn the_ledger_does_what_a_list_does() {
        let seeds = std::env::var("LEDGER_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
        for seed in 0..seeds.unwrap_or(50) {
            run_beside_a_list(seed);
        }
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each kind of step")]
    fn run_beside_a_list(seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let names = ["a", "b", "c"];
        let mut now = origin();
        let (mut ledger, mut list) = (Ledger::default(), Vec::<Naive>::new());
        // When the acknowledged ones were sent, and when a server was replaced.
        let (mut log, mut moved_at) = (Vec::<Instant>::new(), None);
        // Marks, and the name of which a release was open then.
        let mut marks: Vec<(ReleaseNo, LockName)> = Vec::new();
        for step in 0..300 {
            now += Duration::from_millis(random.u64(..400));
            let at_stage = |random: &mut fastrand::Rng, is_it: &dyn Fn(Stage) -> bool| {
                let all: Vec<usize> = (0..list.len()).filter(|at| is_it(list[*at].stage)).collect();
                random.choice(all)
            };
            match random.u8(..12) {
                0..=2 => {
                    let copies = random.bool().then_some(1_000_000);
                    let release = release(names[random.usize(..3)], copies);
                    let stage =
                        if random.u8(..4) == 0 { Stage::InServerQueue } else { Stage::Sending };
                    let id = release.id.clone();
                    let late_copy_deadline = release.late_copy_deadline;
                    let no = ledger.begin(release, stage);
                    let (schedule, refused) = (None, false);
                    list.push(Naive { no, id, late_copy_deadline, stage, schedule, refused });
                }
                3 if random.bool() => {
                    if let Some(at) = random.choice(0..list.len()) {
                        let is_in_flight = list[at].is_in_flight();
                        assert_eq!(ledger.cancel(list[at].no), is_in_flight);
                        if is_in_flight {
                            list.remove(at);
                        }
                    }
                }
                3 | 4 => {
                    if let Some(at) = at_stage(&mut random, &|stage| stage == Stage::Sending) {
                        ledger.set_unread(list[at].no, now);
                        list[at].schedule(now);
                        list[at].stage = Stage::Unread;
                    } else if let Some(at) = random.choice(0..list.len()) {
                        ledger.not_written(list[at].no);
                        if list[at].stage == Stage::Unread {
                            list[at].stage = Stage::Sending;
                        }
                    }
                }
                5 | 6 => {
                    let is_in_flight =
                        |stage| !matches!(stage, Stage::Queued(_) | Stage::InPass(_));
                    if let Some(at) = at_stage(&mut random, &is_in_flight) {
                        assert!(ledger.queue(list[at].no, HERE, now));
                        list[at].schedule(now);
                        list[at].stage = Stage::Queued(HERE);
                    }
                }
                7 if random.u8(..8) == 0 => {
                    ledger.queue_unread(|_| HERE);
                    for one in list.iter_mut().filter(|one| one.stage == Stage::Unread) {
                        one.stage = Stage::Queued(HERE);
                    }
                }
                7 if random.u8(..8) == 0 => {
                    // Another server has taken over. It may not know what was released lately.
                    let again = ledger.server_moved(now, |_| true);
                    let is_young = |sent_at: &&Instant| now - **sent_at <= Duration::from_secs(30);
                    assert_eq!(again.len(), log.iter().filter(is_young).count(), "seed {seed}");
                    log.clear();
                    moved_at = Some(now);
                    for release in again {
                        let id = release.id.clone();
                        let no = ledger.begin_again(release, now);
                        let (late_copy_deadline, refused) = (None, false);
                        let mut schedule = ReleaseSchedule::new(now, LEASE, None);
                        schedule.acknowledged = true;
                        let (stage, schedule) = (Stage::Sending, Some(schedule));
                        list.push(Naive { no, id, late_copy_deadline, stage, schedule, refused });
                    }
                }
                7 => {
                    // Those that are due and have moved are queued for another server.
                    for (no, to) in ledger
                        .moved(HERE, now, 2, |name| if name.as_str() == "a" { THERE } else { HERE })
                    {
                        ledger.move_to(no, to);
                        list.iter_mut().find(|one| one.no == no).unwrap().stage = Stage::Queued(to);
                    }
                }
                8 => {
                    for (no, ..) in ledger.begin_pass(HERE, now, 3) {
                        let one = list.iter_mut().find(|one| one.no == no).unwrap();
                        assert!(one.schedule.unwrap().due <= now, "seed {seed} step {step}");
                        one.stage = Stage::InPass(HERE);
                    }
                }
                9 | 10 => {
                    let Some(at) = random.choice(0..list.len()) else { continue };
                    let (no, stage) = (list[at].no, list[at].stage);
                    let is_in_pass = matches!(stage, Stage::InPass(_));
                    let alone = is_in_pass || random.u8(..4) > 0;
                    let found = if alone || random.bool() { Found::Own } else { Found::Nothing };
                    let server_time = ServerTime(random.i64(999_000..1_002_000));
                    let released = Released::new(found, server_time);
                    let failure = if random.bool() { Failure::Closed } else { refusal() };
                    let reply = if random.bool() { Ok(&released) } else { Err(&failure) };
                    let ago = Duration::from_millis(random.u64(..200));
                    let sent_at = now.checked_sub(ago).unwrap();
                    let answered = ledger.answered(no, alone, now, answer(sent_at, reply));
                    if matches!(stage, Stage::Sending | Stage::Unread | Stage::InPass(_)) {
                        let (stays, is_logged) = list[at].answer((sent_at, now), moved_at, reply);
                        assert_eq!(answered.must_queue, stays && !is_in_pass, "seed {seed}");
                        log.extend(is_logged.then_some(sent_at));
                        if !stays {
                            list.remove(at);
                        }
                    } else {
                        assert!(!answered.must_queue && !answered.first, "seed {seed}");
                    }
                }
                _ => {
                    let sent: Vec<_> = list.iter().map(|one| one.no).collect();
                    ledger.end_pass(now, &sent);
                    list.retain_mut(|one| {
                        let is_in_pass = matches!(one.stage, Stage::InPass(_));
                        one.stage = if is_in_pass { Stage::Queued(HERE) } else { one.stage };
                        !is_in_pass || one.schedule(now).fail(now)
                    });
                }
            }
            check_derived(&ledger);
            let is_queued = |one: &&Naive| !one.is_in_flight();
            assert_eq!(ledger.queued(), list.iter().filter(is_queued).count());
            // Also between a bad answer and the queue, or a release would be nowhere for a moment.
            let unread = list.iter().filter(|one| one.stage == Stage::Unread).count();
            assert_eq!(ledger.unread(), unread, "seed {seed} step {step}");
            let mut open: Vec<_> = ledger.unacknowledged_ids();
            open.sort_by_key(|id| id.owner.bytes());
            let mut expected: Vec<_> =
                list.iter().filter(|one| one.is_open()).map(|one| one.id.clone()).collect();
            expected.sort_by_key(|id| id.owner.bytes());
            assert_eq!(open, expected, "seed {seed} step {step}");
            for name in names.map(|name| LockName::parse(name).unwrap()) {
                let mut of_name = list.iter().filter(|one| one.id.name == name);
                assert_eq!(ledger.contains(&name), of_name.clone().next().is_some());
                let is_outstanding = of_name.any(Naive::is_outstanding);
                let mark = ledger.mark();
                assert_eq!(ledger.is_outstanding(&name, mark, None), is_outstanding);
                if is_outstanding && marks.len() < 32 && random.u8(..8) == 0 {
                    marks.push((mark, name));
                }
            }
            // Invariant 4.
            for (mark, name) in &marks {
                let known =
                    ledger.is_outstanding(name, *mark, None) || ledger.was_settled(name, *mark);
                assert!(known, "seed {seed} step {step}: {mark:?} {name:?}");
            }
        }
    }
}
