//! A history of one lock in words.

use crate::testing::checked::state::{Client, Command, Message, Reply, State, Step, Verb};

/// What a step does. `ran`: what the server replies to a request that reaches it, and whether it
/// changes something. `is_valid`: whether a validity holds at a step of time.
pub(crate) fn sentence(
    state: &State,
    step: Step,
    after: Option<&State>,
    ran: impl Fn(Command) -> (Reply, bool),
    is_valid: impl Fn(Option<u32>, u8) -> bool,
) -> String {
    let mut text = what_happens(state, step);
    if let Step::Deliver(index) = step {
        text += &consequence(state.messages[usize::from(index)], &ran);
    }
    if let Some(after) = after {
        for (client, (before, then)) in state.clients.iter().zip(&after.clients).enumerate() {
            let holds =
                |own: &Client, now| own.hold.is_some_and(|hold| is_valid(hold.valid_until, now));
            let name = name(u8::try_from(client).unwrap_or(0));
            match (holds(before, state.now), holds(then, after.now)) {
                (false, true) => text = format!("{text}; {name} holds the lock"),
                (true, false) if !is_an_end(step) => {
                    text = format!("{text}; {name}'s validity is over");
                }
                _ => {}
            }
            let is_cached = |own: &Client| own.hold.is_some_and(|hold| hold.is_cached);
            if is_cached(then) && !is_cached(before) {
                text = format!("{text}; {name} caches the hold");
            }
            let is_given = |own: &Client| own.hold.is_some_and(|hold| hold.is_given);
            if is_given(then) && !is_given(before) {
                text = format!("{text}; the hold is given to {name}'s next thread");
            }
        }
    }
    text
}

/// Whether the client itself ends its hold.
fn is_an_end(step: Step) -> bool {
    let by_a_guard = matches!(step, Step::Release(_) | Step::TakeOver(_) | Step::TakeCached(_));
    by_a_guard || matches!(step, Step::Crash(_) | Step::LeaveQueue(_) | Step::EndCached(_))
}

fn name(client: u8) -> char {
    char::from(b'A' + client)
}

fn request(command: Command) -> String {
    let hold = command.hold + 1;
    let name = name(command.client);
    match command.verb {
        Verb::Acquire { .. } => format!("{name}'s acquire (hold {hold})"),
        Verb::Renew => format!("{name}'s renewal (hold {hold})"),
        Verb::SetCount { count, .. } => format!("{name}'s count {count} (hold {hold})"),
        Verb::Release => format!("{name}'s release (hold {hold})"),
        Verb::ForceRelease(copy) => format!("copy {} of the forced release", copy + 1),
    }
}

fn what_happens(state: &State, step: Step) -> String {
    let own = |client: u8| &state.clients[usize::from(client)];
    let hold = |client: u8| {
        let number = own(client).hold.map(|hold| hold.number);
        number.or(own(client).call.map(|call| call.hold)).unwrap_or(own(client).begun) + 1
    };
    let message = |index: u8| state.messages[usize::from(index)].map(|one| one.command);
    match step {
        Step::Time => "331 ms pass".to_owned(),
        Step::Crash(client) => format!("{} crashes", name(client)),
        Step::Acquire(client) => {
            format!("{} sends an acquire (hold {})", name(client), hold(client))
        }
        Step::AskAgain(client) => {
            format!("{} sends the acquire again (hold {})", name(client), hold(client))
        }
        Step::EndAcquire(client) => format!("{}'s acquire ends without a guard", name(client)),
        Step::Renew(client) => {
            format!("{} sends a renewal (hold {})", name(client), hold(client))
        }
        Step::Nest(client) => format!("{} nests its hold", name(client)),
        Step::Unnest(client) => format!("{} drops a nested guard", name(client)),
        Step::Release(client) => format!("{} drops its guard", name(client)),
        Step::Wait(client) => format!("another thread of {} waits", name(client)),
        Step::TakeOver(client) => format!("{}'s next thread looks at its hold", name(client)),
        Step::TakeCached(client) => format!("{} acquires its cached hold", name(client)),
        Step::EndCached(client) => format!("{}'s cached hold ends", name(client)),
        Step::LeaveQueue(client) => format!("{}'s first waiter leaves", name(client)),
        Step::SeeEnd(client) => format!("{} notices that its hold is over", name(client)),
        Step::SendRelease(client, place) => {
            let queued = own(client).releases[usize::from(place)];
            let hold = queued.map_or(0, |one| one.hold) + 1;
            format!("{} sends the queued release (hold {hold})", name(client))
        }
        Step::BeginWrite(client) => {
            format!("{} sees that it holds the lock, and begins a write", name(client))
        }
        Step::EndWrite(client) => format!("{}'s write reaches the resource", name(client)),
        Step::ForceRelease => "an operator forces the release".to_owned(),
        Step::Replicate => "the replica receives all writes".to_owned(),
        Step::FailOver => "the replica takes over".to_owned(),
        Step::SeeFailOver(client) => format!("{} sees the failover", name(client)),
        Step::Deliver(index) => match state.messages[usize::from(index)] {
            Some(message) if message.reply.is_some() => {
                format!("the reply to {} arrives", request(message.command))
            }
            Some(message) => format!("{} reaches the server", request(message.command)),
            None => String::new(),
        },
        Step::GiveUp(index) => {
            let command = message(index).map(request).unwrap_or_default();
            format!("{command} is given up without a reply")
        }
    }
}

fn consequence(message: Option<Message>, ran: &impl Fn(Command) -> (Reply, bool)) -> String {
    let Some(message) = message.filter(|message| message.reply.is_none()) else {
        return String::new();
    };
    let (reply, changes) = ran(message.command);
    match reply {
        Reply::Late => ": too late".to_owned(),
        Reply::Granted(0) => ": granted".to_owned(),
        Reply::Granted(_) => ": granted with a token".to_owned(),
        Reply::Busy => ": refused, another has it".to_owned(),
        Reply::Renewed => ": prolonged".to_owned(),
        Reply::Lost { .. } => ": the hold is not there".to_owned(),
        Reply::Counted => ": written".to_owned(),
        Reply::Released(_) if !changes => ": nothing to release".to_owned(),
        Reply::Released(_) | Reply::Forced(true) => ": the lock is free".to_owned(),
        Reply::Forced(false) => ": it was free".to_owned(),
    }
}
