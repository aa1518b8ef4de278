//! Releases that the server has not acknowledged. Pure: time is an argument.
//!
//! A release is queued when its call got no answer, when a hold was lost while the server may still
//! keep its key, and when a copy of an acquire may still be on its way (DESIGN: release queue, late
//! copies). It stays queued until the server has acknowledged it at a time past that copy's
//! not-after, or until whatever it would release must have expired. Each server has its own queue.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;

use crate::hold::hold::Hold;
use crate::model::kind::Kind;
use crate::model::name::LockName;
use crate::model::owner::Owner;
use crate::ops::Released;
use crate::ops::by_kind::{HoldId, SharedOperation};
use crate::ops::value::ServerTime;
use crate::store::Failure;

/// A command that releases something. It may be sent any number of times.
pub(crate) type ReleaseOp = SharedOperation<Released>;

/// Signals that a release was acknowledged or given up: nothing is sent, it is dropped.
pub(crate) type DoneSignal = Sender<Infallible>;

/// What is released: a hold, or what one request took of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseId {
    /// Compared first: two releases rarely have the same owner.
    pub(crate) owner: Owner,
    /// `None` for a semaphore.
    pub(crate) kind: Option<Kind>,
    pub(crate) name: LockName,
}

impl From<HoldId> for ReleaseId {
    fn from(hold_id: HoldId) -> Self {
        let HoldId { kind, name, owner } = hold_id;
        Self { kind: Some(kind), name, owner }
    }
}

impl From<&HoldId> for ReleaseId {
    fn from(hold_id: &HoldId) -> Self {
        Self::from(hold_id.clone())
    }
}

impl ReleaseId {
    /// The hold, if it is one.
    pub(crate) fn hold_id(&self) -> Option<HoldId> {
        let (name, owner) = (self.name.clone(), self.owner.clone());
        self.kind.map(|kind| HoldId { kind, name, owner })
    }
}

/// One release in the queue.
#[derive(Debug)]
pub(crate) struct QueuedRelease {
    id: ReleaseId,
    /// `None` for a hold, whose id says how it is released: a million of them would be 150 MB. Not
    /// for one whose key stays.
    operation: Option<ReleaseOp>,
    schedule: ReleaseSchedule,
    /// The server will not do it, as far as its last answer says.
    refused: bool,
    /// Dropped with the acknowledgement.
    done: Option<DoneSignal>,
    /// Until a copy of it may have run.
    ended: Option<EndedHold>,
}

/// When a release is sent, and when no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ReleaseSchedule {
    /// Until when a copy of the acquire may arrive.
    late_copy_deadline: Option<ServerTime>,
    pub(crate) due: Instant,
    pause: Duration,
    /// When nothing can be left to release.
    expires: Instant,
    acknowledged: bool,
}

/// Whether a release that ran at this time of the server may be undone by a copy of the acquire.
pub(crate) fn may_be_undone(late_copy_deadline: Option<ServerTime>, at: ServerTime) -> bool {
    late_copy_deadline.is_some_and(|deadline| deadline >= at)
}

impl ReleaseSchedule {
    /// Due at `due`. Nothing is left to release `lifetime` later.
    pub(crate) fn new(
        due: Instant,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
    ) -> Self {
        let expires = due + lifetime + GRACE;
        Self { late_copy_deadline, due, pause: FIRST_PAUSE, expires, acknowledged: false }
    }

    /// The server released it when its clock was at `at`. True if it is to be sent again: once a
    /// copy of the acquire would be too late, at the latest when the lease has ended.
    #[must_use]
    pub(crate) fn acknowledge(&mut self, now: Instant, at: ServerTime) -> bool {
        self.acknowledged = true;
        let Some(deadline) = self.late_copy_deadline else { return false };
        if !may_be_undone(self.late_copy_deadline, at) || now >= self.expires {
            return false;
        }
        let wait = u64::try_from(deadline.0.saturating_sub(at.0)).unwrap_or(u64::MAX);
        let wait = Duration::from_millis(wait.saturating_add(1));
        self.due = now.checked_add(wait).map_or(self.expires, |due| due.min(self.expires));
        true
    }

    /// It got no answer. True if it is to be sent again, after a pause; false if its lease has
    /// expired.
    #[must_use]
    pub(crate) fn fail(&mut self, now: Instant) -> bool {
        if now >= self.expires {
            return false;
        }
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        true
    }
}

/// A hold that was released, so that its owner is told if the server does not know it.
#[derive(Clone, Debug)]
pub(crate) struct EndedHold {
    pub(crate) hold: Arc<Hold>,
    /// Until when it would have been valid.
    pub(crate) valid_until: Option<Instant>,
}

/// What is known of a release that was acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Whether it was not acknowledged before.
    pub(crate) first: bool,
    /// How long what it released would have lasted.
    pub(crate) lifetime: Duration,
    /// The hold, if this acknowledgement tells whether it was there.
    pub(crate) ended: Option<EndedHold>,
    /// Whether the key of the hold stays.
    pub(crate) is_kept: bool,
}

impl QueuedRelease {
    /// Due at `due`. Nothing is left to release `lifetime` later.
    pub(crate) fn new(
        due: Instant,
        id: ReleaseId,
        release: ReleaseOp,
        lifetime: Duration,
        late_copy_deadline: Option<ServerTime>,
        done: Option<DoneSignal>,
    ) -> Self {
        let operation = id.kind.is_none().then_some(release);
        let schedule = ReleaseSchedule::new(due, lifetime, late_copy_deadline);
        Self { id, operation, schedule, refused: false, done, ended: None }
    }

    /// The same release, with the hold that it ends, if the release has not run so far.
    pub(crate) fn of_hold(self, ended: Option<EndedHold>) -> Self {
        Self { ended, ..self }
    }

    /// The same release, but with `keep` as the command that ends the hold, if its key is to stay.
    pub(crate) fn keeping(mut self, keep: Option<ReleaseOp>) -> Self {
        self.operation = keep.or(self.operation);
        self
    }

    /// A release that one server has acknowledged, but another may not know. Due at `due`. Nothing
    /// is left to release `lifetime` later.
    pub(crate) fn acknowledged(
        due: Instant,
        id: ReleaseId,
        release: ReleaseOp,
        lifetime: Duration,
    ) -> Self {
        let mut queued = Self::new(due, id, release, lifetime, None, None);
        queued.schedule.acknowledged = true;
        queued
    }

    pub(crate) fn id(&self) -> &ReleaseId {
        &self.id
    }

    /// What is sent.
    fn operation(&self) -> Option<ReleaseOp> {
        let of_hold = || self.id.hold_id().map(|hold_id| hold_id.release());
        self.operation.clone().or_else(of_hold)
    }

    /// Whether a copy of the acquire may arrive after a release at this time of the server.
    pub(crate) fn may_be_undone_after(&self, at: ServerTime) -> bool {
        may_be_undone(self.schedule.late_copy_deadline, at)
    }

    fn name_bytes(&self) -> usize {
        self.id.name.as_str().len()
    }

    /// Whether it may still change what the server has. False once the server has refused it: what
    /// refuses an acquire then stays there, and to wait for this release is of no use.
    fn is_outstanding(&self) -> bool {
        !self.schedule.acknowledged && !self.refused
    }
}

/// The releases that are pending on one server.
#[derive(Debug, Default)]
pub(crate) struct ReleaseQueue {
    /// By when they are due, and then in the order in which they came.
    queued: BTreeMap<(Instant, u64), QueuedRelease>,
    /// How many were ever added to `queued`.
    added: u64,
    /// The length of the names of all that are queued.
    name_bytes: usize,
    /// The releases that are being sent. They stay here, so that no end of the round can lose them.
    /// They are in the order in which they are sent, which is that of the replies.
    in_round: VecDeque<QueuedRelease>,
    /// Both of them, by the hash of the name. Two names with one hash would be taken for one, which
    /// makes an acquire wait for a release that does not concern it.
    by_name: BTreeMap<u64, NameCounts>,
    hasher: RandomState,
    /// Given up: the queue was full, the lease has expired, or the client has ended.
    pub(crate) abandoned: u64,
}

/// The releases of one name.
#[derive(Debug, Default)]
struct NameCounts {
    pending: usize,
    /// How many are [outstanding](QueuedRelease::is_outstanding).
    outstanding: usize,
}

/// A shutdown queues everything that the client holds, and a client may hold a million locks. One
/// release takes up to 300 bytes and its name, less than the hold that it ends. More than this many
/// means that the server has been away for long. Then leases expire.
const MAX_QUEUED: usize = 1 << 20;
/// Of all names together. Then a million of them have 64 bytes each.
const MAX_NAME_BYTES: usize = 64 << 20;
/// Releases that are sent together. A renewal that becomes due meanwhile waits for them, about a
/// millisecond.
pub(crate) const ROUND: usize = 100;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// How long after the end of its lease a key is certain to be gone.
const GRACE: Duration = Duration::from_secs(10);

impl ReleaseQueue {
    /// Adds a release. False if the queue is full: it is counted as abandoned.
    pub(crate) fn push(&mut self, release: QueuedRelease) -> bool {
        let bytes = self.name_bytes.saturating_add(release.name_bytes());
        let has_room = self.len() < MAX_QUEUED && bytes <= MAX_NAME_BYTES;
        if has_room {
            self.add(release);
        } else {
            self.abandoned += 1;
        }
        has_room
    }

    fn add(&mut self, release: QueuedRelease) {
        let counts = self.by_name.entry(self.hasher.hash_one(&release.id.name)).or_default();
        counts.pending += 1;
        counts.outstanding += usize::from(release.is_outstanding());
        self.name_bytes = self.name_bytes.saturating_add(release.name_bytes());
        self.added += 1;
        self.queued.insert((release.schedule.due, self.added), release);
    }

    /// This one is not pending any more, or about to be added again.
    fn uncount(&mut self, release: &QueuedRelease) {
        let hash = self.hasher.hash_one(&release.id.name);
        let Some(counts) = self.by_name.get_mut(&hash) else { return };
        counts.pending = counts.pending.saturating_sub(1);
        let outstanding = usize::from(release.is_outstanding());
        counts.outstanding = counts.outstanding.saturating_sub(outstanding);
        if counts.pending == 0 {
            self.by_name.remove(&hash);
        }
    }

    /// The first that is due. It is still counted among those of its name.
    fn take_first(&mut self, now: Instant) -> Option<QueuedRelease> {
        let first = self.queued.first_entry().filter(|first| first.get().schedule.due <= now)?;
        let release = first.remove();
        self.name_bytes = self.name_bytes.saturating_sub(release.name_bytes());
        Some(release)
    }

    /// Takes up to `max` that are due into the round. They stay pending until they are
    /// acknowledged.
    pub(crate) fn begin_round(&mut self, now: Instant, max: usize) -> Vec<(ReleaseId, ReleaseOp)> {
        while self.in_round.len() < max
            && let Some(first) = self.take_first(now)
        {
            self.in_round.push_back(first);
        }
        let operation = |sent: &QueuedRelease| Some((sent.id.clone(), sent.operation()?));
        self.in_round.iter().filter_map(operation).collect()
    }

    /// Queues again what got no answer in the round. It may have run.
    pub(crate) fn end_round(&mut self, now: Instant) {
        while let Some(mut sent) = self.in_round.pop_front() {
            self.uncount(&sent);
            sent.ended = None;
            self.retry_later(now, sent);
        }
    }

    /// The server released this when its clock was at `at`. If a copy of the acquire may still
    /// arrive, it is released once more when that is too late, at the latest when the lease has
    /// ended.
    pub(crate) fn acknowledge(
        &mut self,
        now: Instant,
        id: &ReleaseId,
        at: ServerTime,
    ) -> Acknowledged {
        let Some(mut sent) = self.take_from_round(id) else { return Acknowledged::default() };
        let lifetime = sent.schedule.expires.saturating_duration_since(now + GRACE);
        let (first, ended) = (!sent.schedule.acknowledged, sent.ended.take());
        // The key stays under another owner. What a late copy creates does not stay.
        let is_kept = sent.id.kind.is_some() && sent.operation.take().is_some();
        if sent.schedule.acknowledge(now, at) {
            sent.done = None;
            self.add(sent);
        }
        Acknowledged { first, lifetime, ended, is_kept }
    }

    /// The release got no answer, or an error.
    pub(crate) fn fail(&mut self, now: Instant, id: &ReleaseId, failure: &Failure) {
        if let Some(mut sent) = self.take_from_round(id) {
            if failure.may_have_run() {
                sent.ended = None;
            }
            sent.refused = matches!(failure, Failure::Refused { .. }) && !failure.is_transient();
            self.retry_later(now, sent);
        }
    }

    fn take_from_round(&mut self, id: &ReleaseId) -> Option<QueuedRelease> {
        let index = self.in_round.iter().position(|sent| sent.id == *id)?;
        let sent = self.in_round.remove(index)?;
        self.uncount(&sent);
        Some(sent)
    }

    /// Up to `max` that are due and not in the round: those that are sent next.
    pub(crate) fn due(&self, now: Instant, max: usize) -> impl Iterator<Item = &ReleaseId> {
        self.due_values(now).take(max).map(|queued| &queued.id)
    }

    fn due_values(&self, now: Instant) -> impl Iterator<Item = &QueuedRelease> {
        self.queued.values().take_while(move |queued| queued.schedule.due <= now)
    }

    /// Takes out those of the first `max` due ones that have `moved` to the queue of another
    /// server.
    pub(crate) fn take_due(
        &mut self,
        now: Instant,
        max: usize,
        moved: impl Fn(&ReleaseId) -> bool,
    ) -> Vec<QueuedRelease> {
        let due: Vec<_> = (0..max).map_while(|_| self.take_first(now)).collect();
        for queued in &due {
            self.uncount(queued);
        }
        let (moved, stay): (Vec<_>, Vec<_>) = due.into_iter().partition(|queued| moved(&queued.id));
        for queued in stay {
            self.add(queued);
        }
        moved
    }

    /// Queues it again after a pause, unless its lease has expired.
    pub(crate) fn retry_later(&mut self, now: Instant, mut sent: QueuedRelease) {
        if sent.schedule.fail(now) {
            self.add(sent);
        } else {
            self.abandoned += 1;
        }
    }

    /// The client ends. What was never acknowledged is abandoned.
    pub(crate) fn abandon(&mut self) {
        let left = self.queued.values().filter(|queued| !queued.schedule.acknowledged).count();
        for queued in std::mem::take(&mut self.queued).into_values() {
            self.uncount(&queued);
        }
        self.name_bytes = 0;
        self.abandoned += u64::try_from(left).unwrap_or(u64::MAX);
    }

    /// Whether some that were never acknowledged are due, or being sent.
    pub(crate) fn has_untried(&self, now: Instant) -> bool {
        self.due_values(now).chain(&self.in_round).any(|queued| !queued.schedule.acknowledged)
    }

    /// Whether there are some that were never acknowledged.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        self.all().any(|queued| !queued.schedule.acknowledged)
    }

    /// Whether some of this name that were never acknowledged are due, or being sent.
    pub(crate) fn has_untried_of(&self, now: Instant, name: &LockName) -> bool {
        let mut due = self.due_values(now).chain(&self.in_round);
        self.contains(name)
            && due.any(|queued| !queued.schedule.acknowledged && queued.id.name == *name)
    }

    /// When the next release is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.queued.first_key_value().map(|((due, _), _)| *due)
    }

    /// When the last of those that were never acknowledged is due.
    pub(crate) fn last_due(&self) -> Option<Instant> {
        self.queued
            .values()
            .rfind(|queued| !queued.schedule.acknowledged)
            .map(|queued| queued.schedule.due)
    }

    /// How many are pending.
    pub(crate) fn len(&self) -> usize {
        self.queued.len() + self.in_round.len()
    }

    /// Whether a release of this name was never acknowledged, and may still change what the server
    /// has. It takes no longer with more releases of other names, nor does
    /// [`contains`](Self::contains).
    pub(crate) fn is_outstanding(&self, name: &LockName) -> bool {
        self.counts_of(name).is_some_and(|counts| counts.outstanding > 0)
    }

    /// Whether a release of this name is pending, of whatever owner.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        self.counts_of(name).is_some()
    }

    fn counts_of(&self, name: &LockName) -> Option<&NameCounts> {
        self.by_name.get(&self.hasher.hash_one(name))
    }

    /// The releases that were never acknowledged.
    pub(crate) fn unacknowledged(&self) -> Vec<ReleaseId> {
        self.all()
            .filter(|queued| !queued.schedule.acknowledged)
            .map(|queued| queued.id.clone())
            .collect()
    }

    fn all(&self) -> impl Iterator<Item = &QueuedRelease> {
        self.queued.values().chain(&self.in_round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::clock::origin;
    use crate::model::owner::ClientId;

    /// A release of a lock `name` that lasts 30 s.
    fn queued(now: Instant, name: &str, late_copy_deadline: Option<i64>) -> QueuedRelease {
        let (name, owner) = (LockName::parse(name).unwrap(), ClientId::random().next_owner());
        let hold_id = HoldId { kind: Kind::Reentrant, name, owner };
        let (id, release) = ((&hold_id).into(), hold_id.release());
        let lifetime = Duration::from_secs(30);
        let deadline = late_copy_deadline.map(ServerTime);
        QueuedRelease::new(now, id, release, lifetime, deadline, None)
    }

    fn queue_of_one(now: Instant, late_copy_deadline: Option<i64>) -> ReleaseQueue {
        let mut releases = ReleaseQueue::default();
        releases.push(queued(now, "a", late_copy_deadline));
        releases
    }

    #[test]
    fn an_acknowledged_release_is_done() {
        let now = origin();
        let mut releases = queue_of_one(now, None);
        let (id, _) = releases.begin_round(now, 9).remove(0);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "still pending");
        releases.acknowledge(now, &id, ServerTime(5));
        releases.end_round(now);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (0, 0));
    }

    #[test]
    fn a_release_is_due_again_after_the_acquires_not_after() {
        let now = origin();
        let mut releases = queue_of_one(now, Some(1000));
        let (id, _) = releases.begin_round(now, 9).remove(0);
        releases.acknowledge(now, &id, ServerTime(400));
        releases.end_round(now);
        assert!(releases.unacknowledged().is_empty());
        let again = now + Duration::from_millis(601);
        assert_eq!(releases.next_due(), Some(again));
        let (id, _) = releases.begin_round(again, 9).remove(0);
        releases.acknowledge(again, &id, ServerTime(1001));
        releases.end_round(again);
        assert_eq!(releases.len(), 0);
    }

    #[test]
    fn a_release_is_pending_until_its_lease_ends_at_most_whatever_the_servers_time() {
        for at in [i64::MIN, -1, 0, i64::MAX - 1] {
            let now = origin();
            let expires = now + Duration::from_secs(30) + GRACE;
            let mut releases = queue_of_one(now, Some(i64::MAX));
            let (id, _) = releases.begin_round(now, 9).remove(0);
            releases.acknowledge(now, &id, ServerTime(at));
            releases.end_round(now);
            assert!(releases.next_due().is_some_and(|due| due <= expires), "{at}");
            let (id, _) = releases.begin_round(expires, 9).remove(0);
            releases.acknowledge(expires, &id, ServerTime(at));
            releases.end_round(expires);
            assert_eq!((releases.len(), releases.abandoned), (0, 0), "{at}");
        }
    }

    #[test]
    fn an_unanswered_release_is_retried_until_its_lease_has_ended() {
        let mut now = origin();
        let end = now + Duration::from_secs(43);
        let mut releases = queue_of_one(now, None);
        let mut tries = 0;
        while now < end {
            for (id, _) in releases.begin_round(now, 9) {
                tries += 1;
                releases.fail(now, &id, &Failure::Closed);
            }
            releases.end_round(now);
            now += Duration::from_millis(50);
        }
        assert_eq!((releases.len(), releases.abandoned), (0, 1));
        assert!((20..40).contains(&tries), "{tries} tries");
    }

    #[test]
    fn a_release_is_pending_exactly_once_however_its_round_ends() {
        let now = origin();
        let mut releases = queue_of_one(now, None);
        let (id, _) = releases.begin_round(now, 9).remove(0);
        releases.fail(now, &id, &Failure::Closed);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "in the round");
        releases.end_round(now);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "after it");

        let later = now + MAX_PAUSE;
        assert_eq!(releases.begin_round(later, 9).len(), 1);
        // The round was cut short.
        releases.end_round(later);
        assert_eq!((releases.len(), releases.unacknowledged().len()), (1, 1), "again");
        assert!(releases.next_due() > Some(later));
    }

    #[test]
    fn releases_are_sent_in_the_order_in_which_they_are_due() {
        let now = origin();
        let mut releases = ReleaseQueue::default();
        for (name, millis) in [("c", 20), ("a", 10), ("d", 20), ("b", 10), ("e", 30)] {
            assert!(releases.push(queued(now + Duration::from_millis(millis), name, None)));
        }
        let mut sent = |millis: u64, max: usize| {
            let now = now + Duration::from_millis(millis);
            let round = releases.begin_round(now, max);
            for (id, _) in &round {
                releases.acknowledge(now, id, ServerTime(5));
            }
            round.iter().map(|(id, _)| id.name.as_str().to_owned()).collect::<String>()
        };
        assert_eq!(sent(9, 9), "");
        assert_eq!(sent(20, 3), "abc");
        assert_eq!(sent(20, 3), "d");
        assert_eq!(sent(40, 3), "e");
        assert_eq!((releases.len(), releases.name_bytes), (0, 0));
    }

    #[test]
    fn those_that_moved_are_taken_out_of_what_is_sent_next() {
        let now = origin();
        let mut releases = ReleaseQueue::default();
        for name in ["a", "b", "c", "a"] {
            assert!(releases.push(queued(now, name, None)));
        }
        assert_eq!(releases.due(now, 3).count(), 3);
        let moved = releases.take_due(now, 3, |id| id.name.as_str() == "a");
        assert_eq!((moved.len(), releases.len(), releases.name_bytes), (1, 3, 3));
        assert!(releases.contains(&LockName::parse("a").unwrap()), "the fourth is not next");
    }

    /// What was a look at every release says of each name, at any moment.
    #[test]
    fn the_releases_of_a_name_are_known_however_they_come_and_go() {
        let mut now = origin();
        let mut releases = ReleaseQueue::default();
        let names: Vec<_> = ["a", "b", "c"].map(|name| LockName::parse(name).unwrap()).into();
        let mut random = fastrand::Rng::with_seed(7);
        let refusal = || Failure::Refused { code: "NOPERM".into(), message: String::new() };
        for _ in 0..2_000 {
            now += Duration::from_millis(random.u64(..200));
            match random.u8(..8) {
                0..3 => {
                    let copies = random.bool().then_some(1_000_000);
                    releases.push(queued(now, names[random.usize(..3)].as_str(), copies));
                }
                3 => {
                    releases.take_due(now, 2, |id| id.name == names[0]);
                }
                4 if random.u8(..8) == 0 => releases.abandon(),
                _ => {
                    for (id, _) in releases.begin_round(now, 3) {
                        match random.u8(..5) {
                            0 => releases.fail(now, &id, &Failure::Closed),
                            1 => releases.fail(now, &id, &refusal()),
                            2 => {}
                            _ => drop(releases.acknowledge(now, &id, ServerTime(5))),
                        }
                    }
                    if random.bool() {
                        releases.end_round(now);
                    }
                }
            }
            for name in &names {
                let of_name = || releases.all().filter(|queued| queued.id.name == *name);
                assert_eq!(releases.contains(name), of_name().next().is_some());
                let outstanding = of_name().any(QueuedRelease::is_outstanding);
                assert_eq!(releases.is_outstanding(name), outstanding);
            }
            let counted: usize = releases.by_name.values().map(|counts| counts.pending).sum();
            assert_eq!(counted, releases.len());
        }
    }

    #[test]
    fn the_queue_is_bounded_in_the_bytes_of_its_names() {
        let now = origin();
        let mut releases = ReleaseQueue::default();
        let name = "x".repeat(64 * 1024);
        for _ in 0..1024 {
            assert!(releases.push(queued(now, &name, None)));
        }
        assert!(!releases.push(queued(now, "y", None)));
        assert_eq!((releases.len(), releases.abandoned), (1024, 1));
        let (id, _) = releases.begin_round(now, 1).remove(0);
        releases.acknowledge(now, &id, ServerTime(5));
        assert!(releases.push(queued(now, "y", None)));
    }

    #[test]
    fn at_the_end_only_what_was_never_acknowledged_counts_as_abandoned() {
        let now = origin();
        let mut releases = queue_of_one(now, Some(1000));
        let (id, _) = releases.begin_round(now, 9).remove(0);
        releases.acknowledge(now, &id, ServerTime(400));
        releases.end_round(now);
        releases.push(queued(now, "b", None));
        releases.abandon();
        assert_eq!((releases.len(), releases.abandoned), (0, 1));
    }
}
