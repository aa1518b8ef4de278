//! A semaphore as a model: request sequences, copies of calls, and undone acquires.
//!
//! Time stands still: what the server remembers outlasts every copy, and so a copy never comes too
//! late to be harmful.

use std::time::Duration;

use crate::core::traces::Traces;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::ops::keyspace::Keyspace;
use crate::ops::request::{Remembered, RequestId};
use crate::ops::semaphore::AddPermits;
use crate::ops::value::ServerTime;
use crate::ops::{Operation, TakePermits, UndoAcquire};
use crate::store::Failure;
use crate::store::retry::deadline_after_failure;
use crate::testing::checked::mutation::Mutation;
use crate::testing::checked::search::{Model, Violation};
use crate::testing::checked::server::{Keys, Keyspaces, Known, once};

const CLIENTS: usize = 2;
const MESSAGES: usize = 5;
/// The calls that each client may make, and the copies of each.
const CALLS: u8 = 4;
const COPIES: u8 = 4;
const NOW: ServerTime = ServerTime(1_000_000_000);
const NOT_AFTER: ServerTime = ServerTime(1_000_006_000);

/// The model: clients that take and give back one permit each.
pub(crate) struct CheckedSemaphore {
    permits: i64,
    /// The calls of a client, and the attempts of a call.
    calls: u8,
    attempts: u8,
    messages: usize,
    mutation: Option<Mutation>,
    name: LockName,
    owners: Vec<Vec<Owner>>,
    keyspaces: Keyspaces,
    runs: Known<(Keys, Command), (Keys, Reply)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    keys: Keys,
    clients: [Client; CLIENTS],
    messages: [Option<Message>; MESSAGES],
}

/// One thread, with one request sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    calls: u8,
    call: Option<Call>,
    has_permit: bool,
}

/// The call of a client that uses its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    verb: Verb,
    attempts: u8,
    is_asking: bool,
    traces: Traces,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Verb {
    Take,
    Undo,
    GiveBack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Command {
    client: u8,
    verb: Verb,
    /// The number of the call, and of its copy.
    call: u8,
    copy: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Message {
    command: Command,
    is_awaited: bool,
    reply: Option<Reply>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Reply {
    Granted,
    Refused,
    Done,
    Late,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Take(u8),
    GiveBack(u8),
    /// The next attempt of a call.
    Ask(u8),
    EndCall(u8),
    Deliver(u8),
    GiveUp(u8),
}

impl CheckedSemaphore {
    pub(crate) fn new(permits: i64, calls: u8, attempts: u8, messages: usize) -> Self {
        let client = |_| {
            let id = ClientId::random();
            (0..CALLS * COPIES).map(|_| id.next_owner()).collect()
        };
        Self {
            permits,
            calls,
            attempts,
            messages,
            mutation: None,
            name: LockName::parse("permits").unwrap(),
            owners: (0..CLIENTS).map(client).collect(),
            keyspaces: Keyspaces::default(),
            runs: Known::default(),
        }
    }

    pub(crate) fn without(mutation: Mutation) -> Self {
        Self { mutation: Some(mutation), ..Self::new(1, 2, 2, 3) }
    }

    fn run(&self, keys: Keys, command: Command) -> (Keys, Reply) {
        once(&self.runs, (keys, command), || {
            let Command { client, verb, call, copy } = command;
            let forgets = self.mutation == Some(Mutation::RepliesForgotten);
            let number = call * COPIES + if forgets { copy } else { 0 };
            let owner = self.owners[usize::from(client)][usize::from(number)].clone();
            let key = format!("sequence of {client}");
            let request = RequestId::of(key.as_str().into(), owner, Duration::from_secs(60));
            let mut keyspace = self.keyspaces.at(keys, NOW);
            let is_late = request.remembered(&mut keyspace) == Ok(Remembered::LaterCall);
            if is_late && self.mutation == Some(Mutation::EarlierCallsRun) {
                keyspace.delete(&key);
            }
            let name = self.name.clone();
            let value = match verb {
                Verb::Take => {
                    TakePermits { name, permits: 1, request }.run(&mut keyspace, NOT_AFTER)
                }
                Verb::Undo => UndoAcquire::new(name, request).run(&mut keyspace, NOT_AFTER),
                Verb::GiveBack => {
                    AddPermits::new(name, 1, true, request).run(&mut keyspace, NOT_AFTER)
                }
            };
            if verb == Verb::Undo && self.mutation == Some(Mutation::UndosForgotten) {
                keyspace.delete(&key);
            }
            let reply = match (verb, &value) {
                _ if value.as_late().is_some() => Reply::Late,
                (Verb::Take, _) if value.as_integers::<2>().is_some_and(|[one, _]| one == 1) => {
                    Reply::Granted
                }
                (Verb::Take, _) => Reply::Refused,
                (Verb::Undo | Verb::GiveBack, _) => Reply::Done,
            };
            (self.keyspaces.intern(&keyspace, NOW), reply)
        })
    }

    fn free(&self, keys: Keys) -> i64 {
        self.keyspaces.at(keys, NOW).number(self.name.as_str()).unwrap().unwrap_or(0)
    }

    fn begin(&self, state: &mut State, client: u8, verb: Verb) {
        let own = &mut state.clients[usize::from(client)];
        own.calls += 1;
        own.call = Some(Call { verb, attempts: 0, is_asking: false, traces: Traces::default() });
        self.ask(state, client);
    }

    fn ask(&self, state: &mut State, client: u8) {
        let own = &mut state.clients[usize::from(client)];
        let Some(call) = &mut own.call else { return };
        call.is_asking = true;
        let copy = call.attempts.min(COPIES - 1);
        // What is not a take is sent until it is answered.
        call.attempts = (call.attempts + 1).min(self.attempts);
        let command = Command { client, verb: call.verb, call: own.calls - 1, copy };
        let place = state.messages.iter_mut().find(|place| place.is_none()).unwrap();
        *place = Some(Message { command, is_awaited: true, reply: None });
    }

    /// The call ends without a permit: it is undone if that is needed.
    fn end_take(&self, own: &mut Client) {
        let Some(call) = own.call.filter(|call| call.verb == Verb::Take) else { return };
        let undoes =
            call.traces.need_roll_back() && self.mutation != Some(Mutation::AcquiresNotUndone);
        own.call =
            undoes.then_some(Call { verb: Verb::Undo, attempts: 0, is_asking: false, ..call });
    }

    fn receive(&self, own: &mut Client, verb: Verb, reply: Reply) {
        match (verb, reply) {
            (Verb::Take, Reply::Granted) => {
                own.call = None;
                own.has_permit = true;
            }
            (Verb::Take, _) => {
                if let Some(call) = &mut own.call {
                    call.is_asking = false;
                }
                self.end_take(own);
            }
            (Verb::Undo | Verb::GiveBack, _) => own.call = None,
        }
    }

    fn check_permits(&self, state: &State) -> Result<(), Violation> {
        let taken = state.clients.iter().filter(|client| client.has_permit).count();
        let taken = i64::try_from(taken).unwrap();
        if taken > self.permits {
            return Err("more permits are held than there are");
        }
        let is_idle = state.clients.iter().all(|client| client.call.is_none());
        if is_idle && self.free(state.keys) + taken != self.permits {
            return Err("no call is under way, and the number of permits has changed");
        }
        Ok(())
    }
}

impl Model for CheckedSemaphore {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut keyspace = Keyspace::default().at(NOW);
        keyspace.text_set(self.name.as_str(), self.permits);
        State {
            keys: self.keyspaces.intern(&keyspace, NOW),
            clients: [Client::default(); CLIENTS],
            messages: [None; MESSAGES],
        }
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        let may_send = state.messages.iter().flatten().count() < self.messages;
        for (client, own) in (0..).zip(&state.clients) {
            match own.call {
                None if may_send && own.calls < self.calls => {
                    steps.push(if own.has_permit {
                        Step::GiveBack(client)
                    } else {
                        Step::Take(client)
                    });
                }
                Some(call) if !call.is_asking => {
                    if may_send && (call.attempts < self.attempts || call.verb != Verb::Take) {
                        steps.push(Step::Ask(client));
                    }
                    if call.verb == Verb::Take {
                        steps.push(Step::EndCall(client));
                    }
                }
                _ => {}
            }
        }
        for (index, message) in (0..).zip(&state.messages) {
            if let Some(message) = message {
                steps.push(Step::Deliver(index));
                if message.is_awaited {
                    steps.push(Step::GiveUp(index));
                }
            }
        }
    }

    fn after(&self, state: &State, step: Step) -> Result<State, Violation> {
        let mut after = state.clone();
        match step {
            Step::Take(client) => self.begin(&mut after, client, Verb::Take),
            Step::GiveBack(client) => {
                // From here on nobody uses it.
                after.clients[usize::from(client)].has_permit = false;
                self.begin(&mut after, client, Verb::GiveBack);
            }
            Step::Ask(client) => self.ask(&mut after, client),
            Step::EndCall(client) => self.end_take(&mut after.clients[usize::from(client)]),
            Step::Deliver(index) => {
                let place = &mut after.messages[usize::from(index)];
                if let Some(message) = place.take() {
                    let own = &mut after.clients[usize::from(message.command.client)];
                    if let Some(reply) = message.reply {
                        self.receive(own, message.command.verb, reply);
                    } else {
                        let (keys, reply) = self.run(after.keys, message.command);
                        after.keys = keys;
                        if message.is_awaited {
                            *place = Some(Message { reply: Some(reply), ..message });
                        }
                    }
                }
            }
            Step::GiveUp(index) => {
                let place = &mut after.messages[usize::from(index)];
                if let Some(message) = place.take() {
                    if message.reply.is_none() {
                        *place = Some(Message { is_awaited: false, ..message });
                    }
                    let own = &mut after.clients[usize::from(message.command.client)];
                    if let Some(call) = &mut own.call {
                        call.is_asking = false;
                        let failure = Failure::Unknown {
                            not_after: NOT_AFTER,
                            reason: "no reply".into(),
                            broken: false,
                        };
                        let before = call.traces.late_copy_deadline;
                        call.traces.late_copy_deadline = deadline_after_failure(before, &failure);
                    }
                }
            }
        }
        after.messages.sort_unstable();
        Ok(after)
    }

    fn check(&self, state: &State) -> Result<(), Violation> {
        self.check_permits(state)
    }

    fn describe(&self, state: &State, step: Step, _after: Option<&State>) -> String {
        let name = |client: u8| char::from(b'A' + client);
        let what = |index: u8| {
            let message = state.messages[usize::from(index)].as_ref();
            message.map_or(String::new(), |message| {
                let Command { client, verb, call, copy } = message.command;
                let part = if message.reply.is_some() { "the reply to " } else { "" };
                format!("{part}{}'s {verb:?} (call {}, copy {})", name(client), call + 1, copy + 1)
            })
        };
        match step {
            Step::Take(client) => format!("{} takes a permit", name(client)),
            Step::GiveBack(client) => format!("{} gives its permit back", name(client)),
            Step::Ask(client) => format!("{} sends its call again, or its undo", name(client)),
            Step::EndCall(client) => format!("{}'s call ends without a reply", name(client)),
            Step::Deliver(index) => format!("{} arrives", what(index)),
            Step::GiveUp(index) => format!("{} is given up", what(index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::checked::search::{Order, report, search, walk};

    #[test]
    fn no_order_of_copies_takes_or_returns_a_permit_twice() {
        for permits in [1, 2] {
            let model = CheckedSemaphore::new(permits, 2, 2, 3);
            let searched = search(&model, Order::Breadth, 1_000_000);
            let searched = searched.unwrap_or_else(|trace| panic!("{}", trace.text));
            report(format_args!("{permits} permits: {searched}"));
            assert!(searched.is_complete);
        }
    }

    #[test]
    fn long_walks_with_many_copies_take_or_return_no_permit_twice() {
        let model = CheckedSemaphore::new(1, 4, 3, 5);
        for seed in 0..500 {
            let walked = walk(&model, seed, 100);
            walked.unwrap_or_else(|trace| panic!("seed {seed}:\n{}", trace.text));
        }
    }

    #[test]
    fn search_finds_each_omitted_decision_protecting_permit_count() {
        for mutation in [
            Mutation::RepliesForgotten,
            Mutation::EarlierCallsRun,
            Mutation::AcquiresNotUndone,
            Mutation::UndosForgotten,
        ] {
            let model = CheckedSemaphore::without(mutation);
            let found = search(&model, Order::Breadth, 1_000_000);
            let trace = found.expect_err(&format!("{mutation:?} changes nothing"));
            report(format_args!("{mutation:?}: {}, {} steps", trace.violation, trace.steps));
        }
    }
}
