//! What must hold in each state of the model of a lock.

use crate::model::kind::Kind;
use crate::testing::checked::checked_lock::CheckedLock;
use crate::testing::checked::mutation::Mutation;
use crate::testing::checked::search::Violation;
use crate::testing::checked::state::{CLIENTS, Client, Command, HOLDS, Message, State, Verb};

pub(crate) const TWO: Violation = "two clients hold the lock";
pub(crate) const VALID_AGAIN: Violation = "a hold is valid again that was over";
pub(crate) const REAPPEARS: Violation = "the server has a hold that was done with";
pub(crate) const OUTLASTS: Violation = "a dead client's lock outlasts its lease and an attempt";
pub(crate) const STUCK: Violation = "all have released the lock, and it waits for a lease to end";
pub(crate) const LEFT: Violation =
    "all have released the lock, and the server still has something of it";
pub(crate) const ENDED_TWO: Violation = "one forced release has ended two holds";

impl CheckedLock {
    pub(crate) fn check_all(&self, state: &State) -> Result<(), Violation> {
        self.check_holders(state)?;
        if self.limits.forced > 0 {
            // A forced release ends a hold that its holder trusts. Only its own promise is left.
            return if state.forced.1 <= 1 { Ok(()) } else { Err(ENDED_TWO) };
        }
        self.check_server(state)?;
        if self.limits.progress && self.dead_are_gone(state) {
            self.check_progress(state, false)?;
            self.check_progress(state, true)?;
        }
        Ok(())
    }

    /// Who sees `is_held()` true.
    fn check_holders(&self, state: &State) -> Result<(), Violation> {
        let (mut holders, mut writers) = (0_u8, 0);
        for (client, number) in state.clients.iter().zip(0..) {
            let is_holder = client.crashed_at.is_none() && self.holds(client, state.now);
            holders |= u8::from(is_holder) << self.process(number);
            writers += u8::from(is_holder && self.kind(number) != Kind::Read);
            if is_holder && client.hold.is_some_and(|hold| hold.seen_over) {
                return Err(VALID_AGAIN);
            }
        }
        // A failover that loses writes can let a second client in, and so can a forced release.
        let keeps_grants = self.limits.replica_acks || !self.has_failed_over(state);
        let is_promised = keeps_grants && self.limits.forced == 0;
        if holders.count_ones() > 1 && writers > 0 && is_promised { Err(TWO) } else { Ok(()) }
    }

    /// Whether a thread of the client sees that it holds the lock.
    fn holds(&self, client: &Client, now: u8) -> bool {
        let releasing = client.releases.iter().flatten().filter_map(|queued| queued.held_until);
        let hold = client.hold.filter(|hold| !hold.is_given && !hold.is_cached);
        let holding = hold.and_then(|hold| hold.valid_until);
        holding.into_iter().chain(releasing).any(|until| self.is_valid(Some(until), now))
    }

    fn has_failed_over(&self, state: &State) -> bool {
        self.limits.fails_over && state.replica.is_none()
    }

    /// What the server has.
    fn check_server(&self, state: &State) -> Result<(), Violation> {
        let held = self.held(state.keys, state.now);
        for (number, client) in state.clients.iter().enumerate() {
            let own = held >> (number * usize::from(HOLDS)) & ((1 << HOLDS) - 1);
            let is_told = !self.lacks(Mutation::OneOwnerForAllHolds)
                && !self.lacks(Mutation::ReadsWithWritersOwner)
                && !self.has_failed_over(state);
            if own & u32::from(client.settled) != 0 && is_told {
                return Err(REAPPEARS);
            }
            if own != 0 && self.dead_client_is_gone(client, state.now) {
                return Err(OUTLASTS);
            }
        }
        Ok(())
    }

    /// Whether a client has crashed, and nothing of it may be left.
    fn dead_client_is_gone(&self, client: &Client, now: u8) -> bool {
        let longest = if client.wants_longer { self.nested_lease } else { self.lease };
        client.crashed_at.is_some_and(|crashed_at| {
            let last = self.not_after(crashed_at) + longest.millis_i64();
            self.server_time(now).0 > last
        })
    }

    fn dead_are_gone(&self, state: &State) -> bool {
        let mut crashed = state.clients.iter().filter(|client| client.crashed_at.is_some());
        crashed.all(|client| self.dead_client_is_gone(client, state.now))
    }

    /// From here on everything is answered: is the lock free when all have released it? What is
    /// under way is lost, or it all arrives.
    fn check_progress(&self, state: &State, arrives: bool) -> Result<(), Violation> {
        let mut calm = state.clone();
        let awaited = |message: &Option<Message>| message.is_some_and(|one| one.is_awaited);
        while let Some(index) = calm.messages.iter().position(awaited) {
            self.stop_waiting(&mut calm, index);
        }
        while let Some(index) = calm.messages.iter().position(Option::is_some) {
            if arrives {
                self.deliver(&mut calm, index)?;
            } else {
                calm.messages[index] = None;
            }
        }
        for client in (0..).take(CLIENTS) {
            self.end_acquire(&mut calm, client);
            self.release(&mut calm, client);
            if self.has_failed_over(&calm) {
                self.release_again(&mut calm, client);
            }
            let queued: Vec<u8> = calm.clients[usize::from(client)]
                .releases
                .iter()
                .flatten()
                .map(|one| one.hold)
                .collect();
            for hold in queued {
                let command = Command { client, hold, verb: Verb::Release, not_after: i64::MAX };
                calm.keys = self.run(calm.keys, command, calm.now).keys;
            }
        }
        if self.held(calm.keys, calm.now) != 0 {
            return Err(STUCK);
        }
        // The token of a fenced lock stays.
        let is_left = !self.has_nothing(calm.keys, calm.now);
        if is_left && self.kind(0) != Kind::Fenced { Err(LEFT) } else { Ok(()) }
    }
}
