//! One lock of any kind as a model: what it is made of, and the arithmetic of its times.
//!
//! The server is the operations' own effect in memory (`serving`). The clients (`clients`) decide
//! by the functions that the library decides by: `deadline_after_failure`, `may_change_owner`,
//! `enclosing_write_hold`, `Leftover`, `Hold::hand_over`, `Hold::cache`, `Hold::take_cached`,
//! `Validity`, `Lease::valid_until`, `ReleaseSchedule`, `loss_leaves_release`, `Renewed::loss`. What
//! must hold is in `properties`, and what may happen in `one_lock`.
//!
//! Time goes on in steps of a third of a second, and a lease is a second. Between two steps of time
//! anything may happen in any order. A message that is never delivered is lost, a client that does
//! nothing is paused, and a client sends what was not answered again.

use std::time::{Duration, Instant};

use crate::model::clock::origin;
use crate::model::kind::Kind;
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::model::validity::Validity;
use crate::ops::by_kind::HoldId;
use crate::ops::value::ServerTime;
use crate::testing::checked::mutation::Mutation;
use crate::testing::checked::server::{Keys, Keyspaces, Known};
use crate::testing::checked::state::{CLIENTS, Command, HOLDS, Limits, Reply};

/// One step of time, and how long an attempt may take.
pub(crate) const STEP: Duration = Duration::from_millis(331);
pub(crate) const STEP_MILLIS: i64 = 331;
pub(crate) const LEASE: Duration = Duration::from_secs(1);
/// The server's time at the start.
pub(crate) const EPOCH: i64 = 1_000_000_000;

/// The model.
pub(crate) struct CheckedLock {
    pub(crate) limits: Limits,
    mutation: Option<Mutation>,
    pub(crate) name: LockName,
    pub(crate) lease: Lease,
    pub(crate) nested_lease: Lease,
    /// Of each client and each of its holds.
    pub(crate) owners: Vec<Vec<Owner>>,
    pub(crate) origin: Instant,
    pub(crate) keyspaces: Keyspaces,
    pub(crate) runs: Known<(Keys, Command, u8), Ran>,
    pub(crate) ticks: Known<(Keys, u8), Keys>,
    pub(crate) held: Known<(Keys, u8), OwnerSet>,
    pub(crate) mirrored: Known<(Keys, usize), Keys>,
    /// The other orders of the clients in which a state is the same.
    pub(crate) mirrors: Vec<[u8; CLIENTS]>,
}

/// A bit for each hold of each client.
pub(crate) type OwnerSet = u32;

/// What a command did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub(crate) keys: Keys,
    pub(crate) reply: Reply,
    /// Whether it changed another owner's hold.
    pub(crate) touched_other_owner: bool,
}

impl CheckedLock {
    pub(crate) fn new(limits: Limits) -> Self {
        let client = |_| {
            let id = ClientId::random();
            (0..HOLDS).map(|_| id.next_owner()).collect()
        };
        Self {
            limits,
            mutation: None,
            name: LockName::parse("lock").unwrap(),
            lease: Lease::new(LEASE).unwrap(),
            nested_lease: Lease::new(Duration::from_millis(limits.nested_lease)).unwrap(),
            owners: (0..=CLIENTS).map(client).collect(),
            origin: origin(),
            keyspaces: Keyspaces::default(),
            runs: Known::default(),
            ticks: Known::default(),
            held: Known::default(),
            mirrored: Known::default(),
            mirrors: mirrors(&limits),
        }
    }

    pub(crate) fn without(limits: Limits, mutation: Mutation) -> Self {
        Self { mutation: Some(mutation), ..Self::new(limits) }
    }

    pub(crate) fn lacks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub(crate) fn server_time(&self, now: u8) -> ServerTime {
        ServerTime(EPOCH + i64::from(now) * STEP_MILLIS * self.limits.rate / 100)
    }

    pub(crate) fn instant(&self, now: u8) -> Instant {
        self.origin + STEP * u32::from(now)
    }

    pub(crate) fn not_after(&self, now: u8) -> i64 {
        self.server_time(now).0 + self.limits.ahead + STEP_MILLIS
    }

    pub(crate) fn millis(&self, at: Instant) -> u32 {
        u32::try_from((at - self.origin).as_millis()).unwrap()
    }

    pub(crate) fn at_millis(&self, millis: u32) -> Instant {
        self.origin + Duration::from_millis(millis.into())
    }

    pub(crate) fn owner(&self, client: u8, hold: u8) -> Owner {
        let (client, hold) = match (client, hold) {
            (1, _) if self.lacks(Mutation::ReadsWithWritersOwner) => (0, 0),
            _ if self.lacks(Mutation::OneOwnerForAllHolds) => (client, 0),
            _ => (client, hold),
        };
        self.owners[usize::from(client)][usize::from(hold)].clone()
    }

    pub(crate) fn kind(&self, client: u8) -> Kind {
        // The operator forces the release of the first client's.
        self.limits.kinds[usize::from(client) % CLIENTS]
    }

    pub(crate) fn id(&self, client: u8, hold: u8) -> HoldId {
        let (kind, name) = (self.kind(client), self.name.clone());
        HoldId { kind, name, owner: self.owner(client, hold) }
    }

    /// Of two clients that are one thread, the first.
    pub(crate) fn process(&self, client: u8) -> u8 {
        if self.limits.reads_own && client == 1 { 0 } else { client }
    }

    /// What `read` says of a hold's validity, which it may change.
    pub(crate) fn validity<R>(
        &self,
        until: Option<u32>,
        read: impl FnOnce(&Validity) -> R,
    ) -> (R, Option<u32>) {
        let validity = Validity::new(self.origin, self.at_millis(until.unwrap_or(0)));
        if until.is_none() {
            validity.end(self.origin);
        }
        let result = read(&validity);
        (result, validity.until().map(|until| self.millis(until)))
    }

    pub(crate) fn is_valid(&self, until: Option<u32>, now: u8) -> bool {
        self.validity(until, |validity| validity.holds(self.instant(now))).0
    }

    /// Until when a grant of a lease to a request is trusted that was sent at one step and answered
    /// at `now`.
    pub(crate) fn trusted_until(&self, lease: Lease, sent_at: u8, now: u8) -> u32 {
        let from = if self.lacks(Mutation::ValidityFromReply) { now } else { sent_at };
        let from = self.instant(from);
        let until = if self.lacks(Mutation::NoDriftMargin) {
            from + lease.duration()
        } else {
            lease.valid_until(from)
        };
        self.millis(until)
    }
}

/// The other orders of the clients, where all do the same.
fn mirrors(limits: &Limits) -> Vec<[u8; CLIENTS]> {
    let clients = usize::from(limits.clients);
    let [first, ..] = limits.kinds;
    if limits.reads_own || limits.kinds[..clients].iter().any(|kind| *kind != first) {
        return Vec::new();
    }
    let orders: &[[u8; CLIENTS]] = &[[1, 0, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1]];
    match clients {
        2 => orders[..1].to_vec(),
        3 => orders.to_vec(),
        _ => Vec::new(),
    }
}
