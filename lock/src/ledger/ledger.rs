//! The ledger: one record for each release of a client, from when it begins until it is settled.
//! Pure: time and topology are arguments.
//!
//! A release begins before its hold is over for the rest of the process. Then a caller sends it, or
//! it is written and its reply is read later, or it is queued for the thread of its server. The
//! stage of its entry says which, and so who moves it on (DESIGN: release queue, unread releases).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use crate::ledger::release::{Acknowledged, QueuedRelease, ReleaseId, ReleaseOp, ReleasePlan};
use crate::model::name::LockName;
use crate::ops::value::ServerTime;
use crate::store::{Failure, ServerId};

/// The order in which releases begin and settle. An acquire remembers the number of the next
/// release as its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ReleaseNo(u64);

/// Who moves a release on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The acquire: the owner waits in a fair lock's queue on the server, and is released unless
    /// the acquire is granted.
    InServerQueue,
    /// One thread, which sends the release, or is about to queue or to cancel it.
    Sending,
    /// Whoever reads the reply: the release was written, and nobody waits for the reply.
    Unread,
    /// The thread that has read the reply, or found that none will come.
    Settling,
    /// The thread of the server, when the release is due.
    Queued(ServerId),
    /// The thread of the server, which has sent the release in its round.
    InRound(ServerId),
}

#[derive(Debug)]
struct Entry {
    id: ReleaseId,
    /// Of the name.
    hash: u64,
    stage: Stage,
    /// `Some` while the release is unread, queued or in a round.
    plan: Option<Box<ReleasePlan>>,
}

/// All releases of a client.
///
/// 1. An entry exists from `begin` or `queue` until it is ended, acknowledged after its copies,
///    expired, or refused for lack of room.
/// 2. Only `take`, `put_back` and `change` change entries and what is derived from them.
/// 3. A release that began before a mark and was open then is outstanding at that mark, or was
///    settled since, or is refused for good, which counts as settled.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<ReleaseNo, Entry>,
    // Derived from `entries`; tests compute them again.
    /// By the hash of the name. Two names with one hash are taken for one, which makes an acquire
    /// ask once more.
    by_name: BTreeSet<(u64, ReleaseNo)>,
    /// The queued ones of each server, by when they are due, and then by when they began.
    due: BTreeMap<ServerId, BTreeSet<(Instant, ReleaseNo)>>,
    counts: Counts,
    /// The releases that ended last, at most [`MAX_SETTLED`].
    settled: VecDeque<Settled>,
    /// The number that was drawn last.
    last: u64,
    hasher: RandomState,
    /// Given up: there was no room or no thread, the lease has expired, or the client has ended.
    pub(crate) abandoned: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    in_server_queue: usize,
    /// Those that are unread or being settled.
    unread: usize,
    /// Those that are queued or in a round, and the length of their names.
    queued: usize,
    name_bytes: usize,
}

/// A release that ended a short time ago, or is known to be refused for good.
#[derive(Clone, Copy, Debug)]
struct Settled {
    hash: u64,
    begun: ReleaseNo,
    at: ReleaseNo,
}

/// What no server has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unacknowledged {
    pub(crate) is_empty: bool,
    /// Whether threads are sending some of them, or some are queued and were not tried yet.
    pub(crate) has_untried: bool,
    /// Whether a thread is there to send any of them.
    pub(crate) may_end: bool,
}

/// The most that are remembered. If more are settled while an acquire is under way, it is sent once
/// more.
const MAX_SETTLED: usize = 256;
/// A shutdown queues everything that the client holds, and a client may hold a million locks. More
/// than this many means that a server has been away for long. Then leases expire.
const MAX_QUEUED: usize = 1 << 20;
/// Of all names together. Then a million of them have 64 bytes each.
const MAX_NAME_BYTES: usize = 64 << 20;
/// Releases that are sent together. A renewal that becomes due meanwhile waits for them, about a
/// millisecond.
pub(crate) const ROUND: usize = 100;

impl Entry {
    /// Whether a thread other than that of a server moves it on.
    fn is_in_flight(&self) -> bool {
        !matches!(self.stage, Stage::Queued(_) | Stage::InRound(_))
    }

    fn due(&self) -> Option<(ServerId, Instant)> {
        match (self.stage, &self.plan) {
            (Stage::Queued(server), Some(plan)) => Some((server, plan.schedule.due)),
            _ => None,
        }
    }

    /// Whether no server has acknowledged it.
    fn is_unacknowledged(&self) -> bool {
        self.is_in_flight() || self.plan.as_ref().is_some_and(|plan| !plan.schedule.acknowledged)
    }

    /// Whether it may still end what refuses an acquire.
    fn is_outstanding(&self) -> bool {
        match self.stage {
            Stage::InServerQueue => false,
            Stage::Sending | Stage::Unread | Stage::Settling => true,
            Stage::Queued(_) | Stage::InRound(_) => {
                self.plan.as_ref().is_some_and(|plan| plan.is_outstanding())
            }
        }
    }

    /// Whether it is about to be sent at `now`, or is being sent.
    fn is_tried_at(&self, now: Instant) -> bool {
        self.due().is_none_or(|(_, due)| due <= now)
    }
}

impl Counts {
    fn of(entry: &Entry) -> Self {
        let mut counts = Self::default();
        match entry.stage {
            Stage::InServerQueue => counts.in_server_queue = 1,
            Stage::Sending => {}
            Stage::Unread | Stage::Settling => counts.unread = 1,
            Stage::Queued(_) | Stage::InRound(_) => {
                counts.queued = 1;
                counts.name_bytes = entry.id.name.as_str().len();
            }
        }
        counts
    }

    fn zip(self, other: Self, with: impl Fn(usize, usize) -> usize) -> Self {
        Self {
            in_server_queue: with(self.in_server_queue, other.in_server_queue),
            unread: with(self.unread, other.unread),
            queued: with(self.queued, other.queued),
            name_bytes: with(self.name_bytes, other.name_bytes),
        }
    }
}

// What changes entries.
impl Ledger {
    fn draw(&mut self) -> ReleaseNo {
        self.last += 1;
        ReleaseNo(self.last)
    }

    fn derive(&mut self, no: ReleaseNo, entry: &Entry) {
        if let Some((server, due)) = entry.due() {
            self.due.entry(server).or_default().insert((due, no));
        }
        self.counts = self.counts.zip(Counts::of(entry), usize::saturating_add);
    }

    fn underive(&mut self, no: ReleaseNo, entry: &Entry) {
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

    fn add(&mut self, id: ReleaseId, stage: Stage, plan: Option<Box<ReleasePlan>>) {
        let (no, hash) = (self.draw(), self.hasher.hash_one(&id.name));
        self.put_back(no, Entry { id, hash, stage, plan });
    }

    fn take(&mut self, no: ReleaseNo) -> Option<Entry> {
        let entry = self.entries.remove(&no)?;
        self.by_name.remove(&(entry.hash, no));
        self.underive(no, &entry);
        Some(entry)
    }

    fn put_back(&mut self, no: ReleaseNo, entry: Entry) {
        self.by_name.insert((entry.hash, no));
        self.derive(no, &entry);
        self.entries.insert(no, entry);
    }

    fn change<T>(&mut self, no: ReleaseNo, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut entry = self.entries.remove(&no)?;
        self.underive(no, &entry);
        let result = change(&mut entry);
        self.derive(no, &entry);
        self.entries.insert(no, entry);
        Some(result)
    }

    /// It ended, or is refused for good.
    fn note_settled(&mut self, hash: u64, begun: ReleaseNo) {
        if self.settled.len() == MAX_SETTLED {
            self.settled.pop_front();
        }
        let at = self.draw();
        self.settled.push_back(Settled { hash, begun, at });
    }
}

// A release in flight.
impl Ledger {
    /// A release begins: of a hold that is about to end, or of an owner that waits on the server.
    pub(crate) fn begin(&mut self, id: ReleaseId, stage: Stage) {
        self.add(id, stage, None);
    }

    /// A release in flight ends: it has an answer, or is not needed. It stays if it was queued
    /// meanwhile.
    pub(crate) fn end(&mut self, id: &ReleaseId) {
        if let Some(no) = self.find(id, Entry::is_in_flight) {
            self.remove(no);
        }
    }

    /// A release in flight is about to be written, and nobody waits for the reply. `release` is
    /// queued if it is not acknowledged.
    pub(crate) fn set_unread(&mut self, release: QueuedRelease) {
        let QueuedRelease { id, plan } = release;
        if let Some(no) = self.find(&id, |entry| entry.stage == Stage::Sending) {
            self.change(no, |entry| {
                entry.stage = Stage::Unread;
                entry.plan = Some(plan);
            });
        }
    }

    /// A release is unread no longer: it has a reply, or gets none, or was not written. `None` if
    /// another thread has queued it already: then its reply says nothing any more.
    pub(crate) fn take_unread(&mut self, id: &ReleaseId, then: Stage) -> Option<QueuedRelease> {
        let no = self.find(id, |entry| entry.stage == Stage::Unread)?;
        let plan = self.change(no, |entry| {
            entry.stage = then;
            entry.plan.take()
        })??;
        Some(QueuedRelease { id: id.clone(), plan })
    }

    /// Queues every release whose reply nobody has read.
    pub(crate) fn queue_unread(&mut self, server_of: impl Fn(&LockName) -> ServerId) {
        let is_unread = |(_, entry): &(_, &Entry)| entry.stage == Stage::Unread;
        let unread: Vec<_> = self.entries.iter().filter(is_unread).map(|(no, _)| *no).collect();
        for no in unread {
            let Some(server) = self.entries.get(&no).map(|entry| server_of(&entry.id.name)) else {
                continue;
            };
            if self.has_room_for(no) {
                self.change(no, |entry| entry.stage = Stage::Queued(server));
            } else {
                self.remove(no);
                self.abandoned += 1;
            }
        }
    }

    /// Queues a release, which is in flight or new. False if there is no room: that is counted, and
    /// the lease has to expire.
    pub(crate) fn queue(&mut self, release: QueuedRelease, server: ServerId) -> bool {
        let QueuedRelease { id, plan } = release;
        if !self.has_room(id.name.as_str().len()) {
            self.abandoned += 1;
            return false;
        }
        match self.find(&id, Entry::is_in_flight) {
            Some(no) => {
                self.change(no, |entry| {
                    entry.stage = Stage::Queued(server);
                    entry.plan = Some(plan);
                });
            }
            None => self.add(id, Stage::Queued(server), Some(plan)),
        }
        true
    }

    fn has_room(&self, bytes: usize) -> bool {
        let Counts { queued, name_bytes, .. } = self.counts;
        queued < MAX_QUEUED && name_bytes.saturating_add(bytes) <= MAX_NAME_BYTES
    }

    fn has_room_for(&self, no: ReleaseNo) -> bool {
        self.entries.get(&no).is_some_and(|entry| self.has_room(entry.id.name.as_str().len()))
    }

    /// The entry ends.
    fn remove(&mut self, no: ReleaseNo) -> Option<Entry> {
        let entry = self.take(no)?;
        self.note_settled(entry.hash, no);
        Some(entry)
    }

    /// The first entry of this release that `is_it`.
    fn find(&self, id: &ReleaseId, is_it: impl Fn(&Entry) -> bool) -> Option<ReleaseNo> {
        let of_name = self.of_name(&id.name);
        of_name.filter(|(_, entry)| entry.id == *id && is_it(entry)).map(|(no, _)| no).next()
    }

    /// The releases of a name, of whatever owner.
    fn of_name<'a>(
        &'a self,
        name: &'a LockName,
    ) -> impl Iterator<Item = (ReleaseNo, &'a Entry)> + 'a {
        let hash = self.hasher.hash_one(name);
        self.by_name
            .range((hash, ReleaseNo(0))..=(hash, ReleaseNo(u64::MAX)))
            .filter_map(|(_, no)| Some((*no, self.entries.get(no)?)))
            .filter(move |(_, entry)| entry.id.name == *name)
    }
}

// What the thread of a server does.
impl Ledger {
    /// Takes up to `max` releases that are due into the round. They stay pending until they are
    /// acknowledged.
    pub(crate) fn begin_round(
        &mut self,
        server: ServerId,
        now: Instant,
        max: usize,
    ) -> Vec<(ReleaseNo, ReleaseId, ReleaseOp)> {
        let due: Vec<ReleaseNo> = self.due_at(server, now).take(max).collect();
        let send = |ledger: &mut Self, no: ReleaseNo| {
            ledger.change(no, |entry| {
                entry.stage = Stage::InRound(server);
                let operation = entry.plan.as_ref()?.operation(&entry.id)?;
                Some((no, entry.id.clone(), operation))
            })?
        };
        due.into_iter().filter_map(|no| send(self, no)).collect()
    }

    /// The server released it when its clock was at `at`. If a copy of the acquire may still
    /// arrive, it is released once more when that is too late, at the latest when the lease has
    /// ended.
    pub(crate) fn acknowledge(
        &mut self,
        no: ReleaseNo,
        now: Instant,
        at: ServerTime,
    ) -> Acknowledged {
        let Some((stage, mut entry)) = self.take_from_round(no) else {
            return Acknowledged::default();
        };
        let Some(plan) = &mut entry.plan else { return Acknowledged::default() };
        let (acknowledged, again) = plan.acknowledge(&entry.id, now, at);
        self.note_settled(entry.hash, no);
        if again {
            plan.done = None;
            entry.stage = stage;
            self.put_back(no, entry);
        }
        acknowledged
    }

    /// The release got no answer, or an error.
    pub(crate) fn fail(&mut self, no: ReleaseNo, now: Instant, failure: &Failure) {
        let Some((stage, mut entry)) = self.take_from_round(no) else { return };
        if let Some(plan) = &mut entry.plan {
            if failure.may_have_run() {
                plan.ended = None;
            }
            plan.refused = matches!(failure, Failure::Refused { .. }) && !failure.is_transient();
            if plan.refused {
                self.note_settled(entry.hash, no);
            }
        }
        self.retry_later(no, now, stage, entry);
    }

    /// Queues again what got no answer in a round. It may have run.
    pub(crate) fn end_round(&mut self, now: Instant, sent: &[ReleaseNo]) {
        for no in sent {
            if let Some((stage, mut entry)) = self.take_from_round(*no) {
                if let Some(plan) = &mut entry.plan {
                    plan.ended = None;
                }
                self.retry_later(*no, now, stage, entry);
            }
        }
    }

    /// With the stage in which its server has it queued.
    fn take_from_round(&mut self, no: ReleaseNo) -> Option<(Stage, Entry)> {
        let Stage::InRound(server) = self.entries.get(&no)?.stage else { return None };
        Some((Stage::Queued(server), self.take(no)?))
    }

    /// Queues it again after a pause, unless its lease has expired.
    fn retry_later(&mut self, no: ReleaseNo, now: Instant, queued: Stage, mut entry: Entry) {
        if entry.plan.as_mut().is_some_and(|plan| plan.schedule.fail(now)) {
            entry.stage = queued;
            self.put_back(no, entry);
        } else {
            self.note_settled(entry.hash, no);
            self.abandoned += 1;
        }
    }

    /// Gives up what is queued for this server: the client ends. What was never acknowledged counts
    /// as abandoned.
    pub(crate) fn abandon(&mut self, server: ServerId) {
        for (_, no) in self.due.get(&server).cloned().unwrap_or_default() {
            let is_lost = |entry: Entry| u64::from(entry.is_unacknowledged());
            self.abandoned += self.remove(no).map_or(0, is_lost);
        }
    }

    /// The servers that have the names of what is due next at this server now, if they are others.
    pub(crate) fn moved(
        &self,
        server: ServerId,
        now: Instant,
        max: usize,
        server_of: impl Fn(&LockName) -> ServerId,
    ) -> Vec<(ReleaseNo, ServerId)> {
        let due = self.due_at(server, now).take(max);
        let with_server = |no| Some((no, server_of(&self.entries.get(&no)?.id.name)));
        due.filter_map(with_server).filter(|(_, of)| *of != server).collect()
    }

    /// Queues it for another server.
    pub(crate) fn move_to(&mut self, no: ReleaseNo, server: ServerId) {
        self.change(no, |entry| {
            if let Stage::Queued(queued_for) = &mut entry.stage {
                *queued_for = server;
            }
        });
    }

    fn due_of(&self, server: ServerId) -> impl DoubleEndedIterator<Item = (Instant, ReleaseNo)> {
        self.due.get(&server).into_iter().flatten().copied()
    }

    fn due_at(&self, server: ServerId, now: Instant) -> impl Iterator<Item = ReleaseNo> {
        self.due_of(server).take_while(move |(due, _)| *due <= now).map(|(_, no)| no)
    }

    /// When the next release of this server is due.
    pub(crate) fn next_due(&self, server: ServerId) -> Option<Instant> {
        self.due_of(server).next().map(|(due, _)| due)
    }

    /// When the last of those that were never acknowledged is due at this server.
    pub(crate) fn last_due(&self, server: ServerId) -> Option<Instant> {
        let is_open = |no: &ReleaseNo| self.entries.get(no).is_some_and(Entry::is_unacknowledged);
        self.due_of(server).rfind(|(_, no)| is_open(no)).map(|(due, _)| due)
    }
}

// Questions.
impl Ledger {
    /// The mark of an acquire that is sent now.
    pub(crate) fn mark(&self) -> ReleaseNo {
        ReleaseNo(self.last + 1)
    }

    /// Whether a release of this name had begun at the mark and may still end the hold: it is sent
    /// and not answered, or queued and not refused. With `tried_by`, what was tried once in vain by
    /// then does not count.
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

    /// Whether a release of this name may have been [outstanding](Self::is_outstanding) at the
    /// mark, and was settled since. To be asked once none is outstanding.
    pub(crate) fn was_settled(&self, name: &LockName, mark: ReleaseNo) -> bool {
        // The list is full, and its oldest entry was settled after the mark: a release that was
        // dropped from the list may have had this name.
        let forgot = self.settled.len() == MAX_SETTLED
            && self.settled.front().is_some_and(|oldest| oldest.at > mark);
        let hash = self.hasher.hash_one(name);
        let is_it = |other: &Settled| other.at >= mark && other.begun < mark && other.hash == hash;
        forgot || self.settled.iter().any(is_it)
    }

    /// Whether the server has refused a release of this name for good, as far as its last answer
    /// says.
    pub(crate) fn has_refused(&self, name: &LockName) -> bool {
        let is_refused = |entry: &Entry| entry.plan.as_ref().is_some_and(|plan| plan.refused);
        self.of_name(name).any(|(_, entry)| is_refused(entry))
    }

    /// Whether a release of this name is pending, of whatever owner.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        self.of_name(name).next().is_some()
    }

    /// Whether a thread of a server, but none of those that are `dead`, will send a release of this
    /// name.
    pub(crate) fn will_be_sent(&self, name: &LockName, dead: &[ServerId]) -> bool {
        self.of_name(name).any(|(_, entry)| match entry.stage {
            Stage::Queued(server) | Stage::InRound(server) => {
                entry.is_outstanding() && !dead.contains(&server)
            }
            _ => false,
        })
    }

    /// Whether anything is queued for this server.
    pub(crate) fn has_queued(&self, server: ServerId) -> bool {
        self.due.contains_key(&server)
    }

    /// Whether an owner of this client is in a queue on the server.
    pub(crate) fn has_waiters(&self) -> bool {
        self.counts.in_server_queue > 0
    }

    /// The releases whose replies nobody has read, or that are being settled by them.
    pub(crate) fn unread(&self) -> usize {
        self.counts.unread
    }

    pub(crate) fn queued(&self) -> usize {
        self.counts.queued
    }

    /// What no server has acknowledged, where those that are `dead` have no thread.
    pub(crate) fn unacknowledged(&self, now: Instant, dead: &[ServerId]) -> Unacknowledged {
        let mut all = Unacknowledged { is_empty: true, has_untried: false, may_end: false };
        for entry in self.entries.values().filter(|entry| entry.is_unacknowledged()) {
            let is_dead = match entry.stage {
                Stage::Queued(server) | Stage::InRound(server) => dead.contains(&server),
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

    /// The releases that were never acknowledged.
    pub(crate) fn unacknowledged_ids(&self) -> Vec<ReleaseId> {
        let open = self.entries.values().filter(|entry| entry.is_unacknowledged());
        open.map(|entry| entry.id.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ledger::release::{GRACE, MAX_PAUSE, ReleaseSchedule};
    use crate::model::clock::origin;
    use crate::model::kind::Kind;
    use crate::model::owner::ClientId;
    use crate::ops::by_kind::HoldId;

    const HERE: ServerId = ServerId(0);
    const THERE: ServerId = ServerId(1);
    const LEASE: Duration = Duration::from_secs(30);

    fn id(name: &str) -> ReleaseId {
        let (name, owner) = (LockName::parse(name).unwrap(), ClientId::random().next_owner());
        ReleaseId { kind: Some(Kind::Reentrant), name, owner }
    }

    /// The release of a lock that lasts for [`LEASE`].
    fn release(due: Instant, id: &ReleaseId, late_copy_deadline: Option<i64>) -> QueuedRelease {
        let hold_id =
            HoldId { kind: Kind::Reentrant, name: id.name.clone(), owner: id.owner.clone() };
        let deadline = late_copy_deadline.map(ServerTime);
        QueuedRelease::new(due, id.clone(), hold_id.release(), LEASE, deadline, None)
    }

    fn ledger_of_one(now: Instant, late_copy_deadline: Option<i64>) -> Ledger {
        let mut ledger = Ledger::default();
        assert!(ledger.queue(release(now, &id("a"), late_copy_deadline), HERE));
        ledger
    }

    /// Sends the only release that is due.
    fn send_one(ledger: &mut Ledger, now: Instant) -> ReleaseNo {
        let round = ledger.begin_round(HERE, now, 9);
        assert_eq!(round.len(), 1);
        round[0].0
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
        ledger.acknowledge(no, now, ServerTime(5));
        ledger.end_round(now, &[no]);
        assert_eq!((ledger.queued(), open(&ledger)), (0, 0));
    }

    #[test]
    fn a_release_is_due_again_after_the_acquires_not_after() {
        let now = origin();
        let mut ledger = ledger_of_one(now, Some(1000));
        let no = send_one(&mut ledger, now);
        ledger.acknowledge(no, now, ServerTime(400));
        assert_eq!(open(&ledger), 0);
        let again = now + Duration::from_millis(601);
        assert_eq!(ledger.next_due(HERE), Some(again));
        let no = send_one(&mut ledger, again);
        ledger.acknowledge(no, again, ServerTime(1001));
        assert_eq!(ledger.queued(), 0);
    }

    #[test]
    fn a_release_ends_with_its_lease_whatever_the_servers_time() {
        for at in [i64::MIN, -1, 0, i64::MAX - 1] {
            let now = origin();
            let expires = now + LEASE + GRACE;
            let mut ledger = ledger_of_one(now, Some(i64::MAX));
            let no = send_one(&mut ledger, now);
            ledger.acknowledge(no, now, ServerTime(at));
            assert!(ledger.next_due(HERE).is_some_and(|due| due <= expires), "{at}");
            let no = send_one(&mut ledger, expires);
            ledger.acknowledge(no, expires, ServerTime(at));
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
            for (no, ..) in ledger.begin_round(HERE, now, 9) {
                tries += 1;
                ledger.fail(no, now, &Failure::Closed);
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
        ledger.end_round(now, &[no]);
        assert_eq!((ledger.queued(), open(&ledger)), (1, 1));
        assert!(ledger.next_due(HERE).is_some_and(|due| due > now && due <= now + MAX_PAUSE));
    }

    #[test]
    fn releases_are_sent_in_the_order_in_which_they_are_due() {
        let now = origin();
        let mut ledger = Ledger::default();
        for (name, millis) in [("c", 20), ("a", 10), ("d", 20), ("b", 10), ("e", 30)] {
            let due = now + Duration::from_millis(millis);
            assert!(ledger.queue(release(due, &id(name), None), HERE));
        }
        let mut sent = |millis: u64, max: usize| {
            let now = now + Duration::from_millis(millis);
            let round = ledger.begin_round(HERE, now, max);
            for (no, ..) in &round {
                ledger.acknowledge(*no, now, ServerTime(5));
            }
            round.iter().map(|(_, id, _)| id.name.as_str().to_owned()).collect::<String>()
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
            assert!(ledger.queue(release(now, &id(&long), None), HERE));
        }
        assert!(!ledger.queue(release(now, &id("y"), None), HERE));
        assert_eq!((ledger.queued(), ledger.abandoned), (1024, 1));
        let (no, ..) = ledger.begin_round(HERE, now, 1).remove(0);
        ledger.acknowledge(no, now, ServerTime(5));
        assert!(ledger.queue(release(now, &id("y"), None), HERE));
    }

    #[test]
    fn at_the_end_only_what_was_never_acknowledged_counts_as_abandoned() {
        let now = origin();
        let mut ledger = ledger_of_one(now, Some(1000));
        let no = send_one(&mut ledger, now);
        ledger.acknowledge(no, now, ServerTime(400));
        assert!(ledger.queue(release(now, &id("b"), None), HERE));
        ledger.abandon(HERE);
        assert_eq!((ledger.queued(), ledger.abandoned), (0, 1));
    }

    #[test]
    fn an_acquire_asks_again_after_more_settlements_than_are_remembered() {
        let now = origin();
        let mut ledger = ledger_of_one(now, None);
        let name = LockName::parse("a").unwrap();
        let mark = ledger.mark();
        let no = send_one(&mut ledger, now);
        ledger.acknowledge(no, now, ServerTime(5));
        assert!(ledger.was_settled(&name, mark));
        for _ in 0..=MAX_SETTLED {
            let other = id("b");
            ledger.begin(other.clone(), Stage::Sending);
            ledger.end(&other);
        }
        assert!(ledger.was_settled(&name, mark), "perhaps: it is forgotten");
        assert!(!ledger.was_settled(&name, ledger.mark()));
    }

    /// What the ledger is to be, as a list.
    #[derive(Clone)]
    struct Naive {
        id: ReleaseId,
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
            !matches!(self.stage, Stage::Queued(_) | Stage::InRound(_))
        }
    }

    /// What is derived from the entries, computed again.
    fn check_derived(ledger: &Ledger) {
        let (mut by_name, mut counts) = (BTreeSet::new(), Counts::default());
        let mut due: BTreeMap<ServerId, BTreeSet<(Instant, ReleaseNo)>> = BTreeMap::new();
        for (no, entry) in &ledger.entries {
            by_name.insert((ledger.hasher.hash_one(&entry.id.name), *no));
            counts = counts.zip(Counts::of(entry), |one, other| one + other);
            if let Stage::Queued(server) = entry.stage {
                let at = entry.plan.as_ref().unwrap().schedule.due;
                due.entry(server).or_default().insert((at, *no));
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
        let mut round: Vec<(ReleaseNo, ReleaseId)> = Vec::new();
        // Marks, and the name of which a release was open then.
        let mut marks: Vec<(ReleaseNo, LockName)> = Vec::new();
        for step in 0..300 {
            now += Duration::from_millis(random.u64(..400));
            let in_flight: Vec<usize> =
                (0..list.len()).filter(|at| list[*at].is_in_flight()).collect();
            let one_of = |random: &mut fastrand::Rng, stage: Stage| {
                let all: Vec<usize> =
                    (0..list.len()).filter(|at| list[*at].stage == stage).collect();
                random.choice(all)
            };
            match random.u8(..12) {
                0 | 1 => {
                    let id = id(names[random.usize(..3)]);
                    let stage =
                        if random.u8(..4) == 0 { Stage::InServerQueue } else { Stage::Sending };
                    ledger.begin(id.clone(), stage);
                    list.push(Naive { id, stage, schedule: None, refused: false });
                }
                2 => {
                    if let Some(at) = random.choice(in_flight) {
                        ledger.end(&list.remove(at).id);
                    }
                }
                3 => {
                    if let Some(at) = one_of(&mut random, Stage::Sending) {
                        let copies = random.bool().then_some(1_000_000);
                        let release = release(now, &list[at].id, copies);
                        (list[at].stage, list[at].schedule) =
                            (Stage::Unread, Some(release.plan.schedule));
                        ledger.set_unread(release);
                    }
                }
                4 => {
                    if let Some(at) = one_of(&mut random, Stage::Unread) {
                        let then = if random.bool() { Stage::Sending } else { Stage::Settling };
                        assert!(ledger.take_unread(&list[at].id, then).is_some());
                        (list[at].stage, list[at].schedule) = (then, None);
                    }
                }
                5 | 6 => {
                    let at = random.choice(in_flight).filter(|at| list[*at].stage != Stage::Unread);
                    let id =
                        at.map_or_else(|| id(names[random.usize(..3)]), |at| list[at].id.clone());
                    let copies = random.bool().then_some(1_000_000);
                    let release = release(now, &id, copies);
                    let (stage, schedule) = (Stage::Queued(HERE), Some(release.plan.schedule));
                    assert!(ledger.queue(release, HERE));
                    let queued = Naive { id, stage, schedule, refused: false };
                    match at {
                        Some(at) => list[at] = queued,
                        None => list.push(queued),
                    }
                }
                7 if random.u8(..8) == 0 => {
                    ledger.queue_unread(|_| HERE);
                    for one in list.iter_mut().filter(|one| one.stage == Stage::Unread) {
                        one.stage = Stage::Queued(HERE);
                    }
                }
                7 => {
                    // Those that are due and have moved are queued for another server.
                    for (no, to) in ledger
                        .moved(HERE, now, 2, |name| if name.as_str() == "a" { THERE } else { HERE })
                    {
                        let id = ledger.entries[&no].id.clone();
                        ledger.move_to(no, to);
                        list.iter_mut().find(|one| one.id == id).unwrap().stage = Stage::Queued(to);
                    }
                }
                8 => {
                    for (no, id, _) in ledger.begin_round(HERE, now, 3) {
                        let one = list.iter_mut().find(|one| one.id == id).unwrap();
                        assert!(one.schedule.unwrap().due <= now, "seed {seed} step {step}");
                        one.stage = Stage::InRound(HERE);
                        round.push((no, id));
                    }
                }
                9 | 10 => {
                    if let Some(at) = random.choice(0..round.len()) {
                        let (no, id) = round.swap_remove(at);
                        let at = list.iter().position(|one| one.id == id).unwrap();
                        let schedule = list[at].schedule.as_mut().unwrap();
                        let failure = if random.bool() { Failure::Closed } else { refusal() };
                        let stays = if random.u8(..3) == 0 {
                            ledger.fail(no, now, &failure);
                            list[at].refused = matches!(failure, Failure::Refused { .. });
                            list[at].schedule.as_mut().unwrap().fail(now)
                        } else {
                            let time = ServerTime(random.i64(999_000..1_002_000));
                            ledger.acknowledge(no, now, time);
                            schedule.acknowledge(now, time)
                        };
                        if stays {
                            list[at].stage = Stage::Queued(HERE);
                        } else {
                            list.remove(at);
                        }
                    }
                }
                _ => {
                    let sent: Vec<_> = round.iter().map(|(no, _)| *no).collect();
                    ledger.end_round(now, &sent);
                    for (_, id) in round.drain(..) {
                        let at = list.iter().position(|one| one.id == id).unwrap();
                        list[at].stage = Stage::Queued(HERE);
                        if !list[at].schedule.as_mut().unwrap().fail(now) {
                            list.remove(at);
                        }
                    }
                }
            }
            check_derived(&ledger);
            let is_queued = |one: &&Naive| !one.is_in_flight();
            assert_eq!(ledger.queued(), list.iter().filter(is_queued).count());
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
            // Invariant 3.
            for (mark, name) in &marks {
                let known =
                    ledger.is_outstanding(name, *mark, None) || ledger.was_settled(name, *mark);
                assert!(known, "seed {seed} step {step}: {mark:?} {name:?}");
            }
        }
    }
}
