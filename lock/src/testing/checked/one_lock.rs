//! What may happen to one lock: the steps of the model.

use crate::error::LostReason;
use crate::ops::keyspace::Keyspace;
use crate::testing::checked::checked_lock::CheckedLock;
use crate::testing::checked::history::sentence;
use crate::testing::checked::mutation::Mutation;
use crate::testing::checked::search::{Model, Violation};
use crate::testing::checked::state::{
    CLIENTS, Client, MESSAGES, Message, Queued, State, Step, Verb,
};

impl Model for CheckedLock {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let keys = self.keyspaces.intern(&Keyspace::default(), self.server_time(0));
        State {
            now: 0,
            keys,
            clients: [Client::default(); CLIENTS],
            messages: [None; MESSAGES],
            replica: self.limits.fails_over.then_some(keys),
            granted: None,
            written_token: 0,
            forced: (0, 0),
        }
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        let limits = &self.limits;
        let under_way = state.messages.iter().flatten().count();
        let may_send = under_way < limits.messages;
        if state.now < limits.time {
            steps.push(Step::Time);
        }
        let crashed = state.clients.iter().filter(|client| client.crashed_at.is_some()).count();
        for (client, own) in (0..limits.clients).zip(&state.clients) {
            if own.crashed_at.is_some() {
                continue;
            }
            let mut threads =
                (0..).zip(&state.clients).filter(|(other, _)| self.process(*other) == client);
            let has_begun = threads.any(|(_, own)| own.begun > 0);
            if crashed < usize::from(limits.crashes) && has_begun {
                steps.push(Step::Crash(client));
            }
            if let Some(token) = own.write.filter(|_| limits.writes) {
                debug_assert!(token > 0);
                steps.push(Step::EndWrite(client));
            }
            if let Some(call) = &own.call {
                if !call.is_asking {
                    if may_send && call.attempts < limits.attempts {
                        steps.push(Step::AskAgain(client));
                    }
                    steps.push(Step::EndAcquire(client));
                }
            } else if own.hold.is_none() && may_send && own.begun < limits.holds {
                // It may not ask to write while it reads.
                if self.under(state, client).is_ok() {
                    steps.push(Step::Acquire(client));
                }
            }
            if let Some(hold) = &own.hold {
                let is_valid = self.is_valid(hold.valid_until, state.now);
                // Of one that was given to a waiter, that has no guard yet.
                let is_idle = !hold.is_nesting && !hold.is_given && !hold.is_cached;
                if may_send && !hold.is_renewing && own.renewed < limits.renewals {
                    steps.push(Step::Renew(client));
                }
                if is_valid && may_send && is_idle && hold.guards < limits.guards {
                    steps.push(Step::Nest(client));
                }
                if hold.guards > 1 && may_send && is_idle {
                    steps.push(Step::Unnest(client));
                }
                if hold.guards == 1 && is_idle && own.write.is_none() {
                    steps.push(Step::Release(client));
                }
                if !is_valid {
                    steps.push(Step::SeeEnd(client));
                }
                if is_valid && limits.writes && !hold.is_cached && own.write.is_none() {
                    steps.push(Step::BeginWrite(client));
                }
                if own.waited < limits.waiters && !hold.is_cached {
                    steps.push(Step::Wait(client));
                }
                if hold.is_given {
                    steps.push(Step::TakeOver(client));
                }
                if hold.is_cached {
                    steps.extend([Step::TakeCached(client), Step::EndCached(client)]);
                }
                if own.waiting > 0 {
                    steps.push(Step::LeaveQueue(client));
                }
            }
            if limits.fails_over && state.replica.is_none() && !own.has_moved {
                steps.push(Step::SeeFailOver(client));
            }
            for (place, queued) in (0..).zip(&own.releases) {
                let is_due = |one: &Queued| one.schedule.due <= self.instant(state.now);
                if may_send && queued.as_ref().is_some_and(|one| !one.is_sent && is_due(one)) {
                    steps.push(Step::SendRelease(client, place));
                }
            }
        }
        if let Some(replica) = state.replica {
            if replica != state.keys {
                steps.push(Step::Replicate);
            }
            steps.push(Step::FailOver);
        }
        if may_send && state.forced.0 < limits.forced {
            steps.push(Step::ForceRelease);
        }
        for (index, message) in (0..).zip(&state.messages) {
            if let Some(message) = message {
                if !message.is_of_old_server || message.reply.is_some() {
                    steps.push(Step::Deliver(index));
                }
                if message.is_awaited {
                    steps.push(Step::GiveUp(index));
                }
            }
        }
    }

    fn after(&self, state: &State, step: Step) -> Result<State, Violation> {
        let mut after = state.clone();
        match step {
            Step::Time => self.pass_time(&mut after),
            Step::Crash(process) => {
                for client in (0..).take(CLIENTS).filter(|own| self.process(*own) == process) {
                    crash(&mut after, client);
                }
            }
            Step::Acquire(client) => self.begin_acquire(&mut after, client),
            Step::AskAgain(client) => self.ask_again(&mut after, client),
            Step::EndAcquire(client) => self.end_acquire(&mut after, client),
            Step::Renew(client) => {
                let own = &mut after.clients[usize::from(client)];
                own.renewed += 1;
                if let Some(hold) = &mut own.hold {
                    hold.is_renewing = true;
                    let number = hold.number;
                    self.send(&mut after, client, number, Verb::Renew);
                }
            }
            Step::Nest(client) | Step::Unnest(client) => {
                let own = &mut after.clients[usize::from(client)];
                if let Some(hold) = &mut own.hold {
                    let nested = matches!(step, Step::Nest(_));
                    own.wants_longer |= nested && self.nested_lease > self.lease;
                    hold.guards = if nested { hold.guards + 1 } else { hold.guards - 1 };
                    hold.is_nesting = nested;
                    hold.count_unknown = true;
                    let (number, count) = (hold.number, hold.guards);
                    self.send(&mut after, client, number, Verb::SetCount { count, nested });
                }
            }
            Step::Release(client) => self.drop_guard(&mut after, client),
            Step::Wait(client) => {
                let own = &mut after.clients[usize::from(client)];
                own.waiting += 1;
                own.waited += 1;
            }
            Step::TakeOver(client) => self.take_over(&mut after, client)?,
            Step::TakeCached(client) => self.take_cached(&mut after, client)?,
            Step::EndCached(client) => self.end_cached(&mut after, client),
            Step::LeaveQueue(client) => self.leave_queue(&mut after, client),
            Step::SeeEnd(client) => self.lose(&mut after, client, LostReason::Paused),
            Step::SendRelease(client, place) => {
                let place = &mut after.clients[usize::from(client)].releases[usize::from(place)];
                if let Some(queued) = place {
                    queued.is_sent = true;
                    let hold = queued.hold;
                    self.send(&mut after, client, hold, Verb::Release);
                }
            }
            Step::BeginWrite(client) => {
                let own = &mut after.clients[usize::from(client)];
                own.write = own.hold.map(|hold| hold.token);
            }
            Step::EndWrite(client) => {
                let token = after.clients[usize::from(client)].write.take().unwrap_or(0);
                let is_old = token < after.written_token;
                if is_old && self.lacks(Mutation::TokensIgnored) {
                    return Err(
                        "the resource takes a write of an earlier hold after a later one's",
                    );
                }
                after.written_token = after.written_token.max(token);
            }
            Step::ForceRelease => {
                let copy = after.forced.0;
                after.forced.0 += 1;
                let client = u8::try_from(CLIENTS).unwrap_or(0);
                self.send(&mut after, client, 0, Verb::ForceRelease(copy));
            }
            Step::Replicate => {
                after.replica = Some(after.keys);
                for message in after.messages.iter_mut().flatten() {
                    message.lacks_replica = false;
                }
                after.messages.sort_unstable();
            }
            Step::FailOver => {
                // It takes a while.
                self.pass_time(&mut after);
                after.keys = after.replica.take().unwrap_or(after.keys);
                for place in &mut after.messages {
                    // What had not reached the old server is lost with it.
                    *place = place
                        .filter(|message| message.is_awaited)
                        .map(|message| Message { is_of_old_server: true, ..message });
                }
                after.messages.sort_unstable();
            }
            Step::SeeFailOver(client) => self.release_again(&mut after, client),
            Step::Deliver(index) => self.deliver(&mut after, usize::from(index))?,
            Step::GiveUp(index) => self.stop_waiting(&mut after, usize::from(index)),
        }
        self.normalize(&mut after);
        Ok(after)
    }

    fn check(&self, state: &State) -> Result<(), Violation> {
        self.check_all(state)
    }

    fn mirrors(&self) -> usize {
        self.mirrors.len()
    }

    fn mirrored(&self, state: &State, mirror: usize) -> State {
        let order = self.mirrors[mirror];
        let place = |client: u8| order.get(usize::from(client)).copied().unwrap_or(client);
        let mut mirrored = state.clone();
        for (client, own) in state.clients.iter().enumerate() {
            mirrored.clients[usize::from(order[client])] = *own;
        }
        for message in mirrored.messages.iter_mut().flatten() {
            message.command.client = place(message.command.client);
        }
        mirrored.messages.sort_unstable();
        mirrored.granted = state.granted.map(|(token, client, hold)| (token, place(client), hold));
        mirrored.keys = self.keys_mirrored(state.keys, mirror);
        mirrored.replica = state.replica.map(|keys| self.keys_mirrored(keys, mirror));
        mirrored
    }

    fn describe(&self, state: &State, step: Step, after: Option<&State>) -> String {
        let ran = |command| {
            let ran = self.run(state.keys, command, state.now);
            (ran.reply, ran.keys != state.keys)
        };
        sentence(state, step, after, ran, |until, now| self.is_valid(until, now))
    }
}

impl CheckedLock {
    /// What needs no step of its own: an acquire without an attempt left ends, and a copy that the
    /// server would refuse as late is as good as lost.
    fn normalize(&self, state: &mut State) {
        for client in (0..).take(CLIENTS) {
            let call = state.clients[usize::from(client)].call;
            if call.is_some_and(|call| !call.is_asking && call.attempts >= self.limits.attempts) {
                self.end_acquire(state, client);
            }
        }
        let now = self.server_time(state.now).0;
        let is_useless = |message: &Message| {
            let is_late = message.command.not_after < now;
            !message.is_awaited && is_late && !self.runs_anytime(message.command.verb)
        };
        if state.messages.iter().flatten().any(is_useless) {
            for place in &mut state.messages {
                *place = place.filter(|message| !is_useless(message));
            }
            state.messages.sort_unstable();
        }
    }

    fn pass_time(&self, state: &mut State) {
        state.now += 1;
        let now = state.now;
        state.keys = self.expired(state.keys, now);
        state.replica = state.replica.map(|keys| self.expired(keys, now));
        for client in &mut state.clients {
            if let Some(hold) = &mut client.hold {
                hold.seen_over |= !self.is_valid(hold.valid_until, now);
            }
        }
    }
}

/// Nothing of a client goes on but its requests that are under way.
fn crash(state: &mut State, client: u8) {
    let own = &mut state.clients[usize::from(client)];
    let Client { begun, settled, wants_longer, .. } = *own;
    let crashed_at = Some(state.now);
    *own = Client { crashed_at, begun, settled, wants_longer, ..Client::default() };
    for place in &mut state.messages {
        let message = place.filter(|message| message.command.client == client);
        if let Some(message) = message {
            let is_request = message.reply.is_none();
            *place = is_request.then_some(Message { is_awaited: false, ..message });
        }
    }
    state.messages.sort_unstable();
}
