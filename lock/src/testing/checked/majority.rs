//! A red lock as a model: two clients, a majority of three servers, and servers that lose their
//! keys.
//!
//! A client decides by the rules of the library: what becomes of a quorum (`Phase`), when a hold is
//! valid, whether a loss or a call without an answer leaves a release. How one server and one
//! client get along over a network is in the model of one lock. So here an answer arrives with its
//! request, and a renewal or a release takes no time. An acquire may take long, have no answer, and
//! arrive after it was given up.
//!
//! A server that was emptied stays away for the longest lease, as the red lock requires.

use std::time::{Duration, Instant};

use crate::core::traces::Leftover;
use crate::error::LostReason;
use crate::ledger::release::may_be_undone;
use crate::locks::held_locks::Phase;
use crate::model::clock::origin;
use crate::model::kind::{Kind, Layout};
use crate::model::lease::Lease;
use crate::model::name::LockName;
use crate::model::owner::{ClientId, Owner};
use crate::model::validity::Validity;
use crate::ops::by_kind::HoldId;
use crate::ops::keyspace::Keyspace;
use crate::ops::value::ServerTime;
use crate::ops::{Operation, Renew, Renewal};
use crate::testing::checked::clients::RETURNED_OVER;
use crate::testing::checked::mutation::Mutation;
use crate::testing::checked::properties::{STUCK, TWO, VALID_AGAIN};
use crate::testing::checked::search::{Model, Violation};
use crate::testing::checked::server::{Keys, Keyspaces, Known, once};
use crate::watchdog::endings::loss_leaves_release;

const CLIENTS: usize = 2;
const SERVERS: usize = 3;
/// How often a member may be asked for.
const ASKS: usize = 4;
/// One step of time, and how long an acquire may take.
const STEP: Duration = Duration::from_millis(331);
const LEASE: Duration = Duration::from_secs(1);
const EPOCH: i64 = 1_000_000_000;
/// The steps for which an emptied server stays away: no less than a lease.
const AWAY: u8 = 4;

/// What may happen, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of each client.
    pub(crate) attempts: u8,
    /// Of each member.
    pub(crate) asks: u8,
    /// Acquires of a member that are given up without an answer.
    pub(crate) given_up: u8,
    pub(crate) renewals: bool,
    /// How often a server loses its keys.
    pub(crate) emptied: u8,
    /// Steps of time.
    pub(crate) time: u8,
    /// Whether each state is looked at for a way to a free lock.
    pub(crate) progress: bool,
}

/// The model.
pub(crate) struct CheckedMajority {
    limits: Limits,
    mutation: Option<Mutation>,
    name: LockName,
    lease: Lease,
    /// Of each client, each server and each acquire there.
    owners: [[Vec<Owner>; SERVERS]; CLIENTS],
    origin: Instant,
    keyspaces: Keyspaces,
    runs: Known<(Keys, Command, u8), (Keys, bool)>,
    mirrored: Known<(Keys, usize), Keys>,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    now: u8,
    servers: [Server; SERVERS],
    clients: [Client; CLIENTS],
    given_up: u8,
    emptied: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Server {
    keys: Keys,
    back_at: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    attempts: u8,
    /// Of its last acquire; `None` before the first.
    phase: Option<Phase>,
    /// No majority was valid at a time after the acquire.
    seen_over: bool,
    members: [Member; SERVERS],
}

/// What a client has of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Member {
    asks: u8,
    /// When the last acquire was sent, while it waits for its answer.
    sent_at: Option<u8>,
    /// The number of an acquire that was given up and may still arrive, and when it was sent.
    copy: Option<(u8, u8)>,
    hold: Option<Held>,
    /// The releases that are queued, by the number of their acquire.
    queued: [Option<Queued>; ASKS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    number: u8,
    /// In milliseconds from the start.
    valid_until: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Queued {
    late_copy_deadline: Option<ServerTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Command {
    client: u8,
    server: u8,
    number: u8,
    verb: Verb,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verb {
    Acquire,
    Renew,
    Release,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Time,
    /// An acquire begins: all members are asked for.
    Begin(u8),
    /// The acquire ends, with a majority or without one.
    Decide(u8),
    Release(u8),
    /// It finds that too few members are left.
    SeeLoss(u8),
    /// A missing member is asked for.
    Ask(u8, u8),
    /// The request for a member is answered.
    Answer(u8, u8),
    GiveUp(u8, u8),
    /// What was given up arrives.
    Arrive(u8, u8),
    Renew(u8, u8),
    /// The end of one member's validity is found.
    SeeEnd(u8, u8),
    SendRelease(u8, u8, u8),
    /// A server loses its keys, and is away for a while.
    Empty(u8),
}

fn server_time(now: u8) -> ServerTime {
    ServerTime(EPOCH + i64::try_from((STEP * u32::from(now)).as_millis()).unwrap())
}

/// After this, the server refuses an acquire that was sent at a step.
fn not_after(sent_at: u8) -> ServerTime {
    server_time(sent_at + 1)
}

fn is_in_time(sent_at: u8, now: u8) -> bool {
    server_time(now) <= not_after(sent_at)
}

impl CheckedMajority {
    pub(crate) fn new(limits: Limits) -> Self {
        let client = || {
            let id = ClientId::random();
            std::array::from_fn(|_| (0..ASKS).map(|_| id.next_owner()).collect())
        };
        Self {
            limits,
            mutation: None,
            name: LockName::parse("lock").unwrap(),
            lease: Lease::new(LEASE).unwrap(),
            owners: [client(), client()],
            origin: origin(),
            keyspaces: Keyspaces::default(),
            runs: Known::default(),
            mirrored: Known::default(),
        }
    }

    pub(crate) fn without(limits: Limits, mutation: Mutation) -> Self {
        Self { mutation: Some(mutation), ..Self::new(limits) }
    }

    fn lacks(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn quorum_size(&self) -> usize {
        if self.lacks(Mutation::MinorityGrants) { 1 } else { SERVERS / 2 + 1 }
    }

    fn instant(&self, now: u8) -> Instant {
        self.origin + STEP * u32::from(now)
    }

    fn trusted_until(&self, sent_at: u8) -> u32 {
        let until = self.lease.valid_until(self.instant(sent_at)) - self.origin;
        u32::try_from(until.as_millis()).unwrap()
    }

    fn validity(&self, held: Held) -> Validity {
        Validity::new(self.origin, self.origin + Duration::from_millis(held.valid_until.into()))
    }

    fn is_valid(&self, held: Held, now: u8) -> bool {
        self.validity(held).holds(self.instant(now))
    }

    fn has_quorum(&self, client: &Client, now: u8) -> bool {
        let holds = client.members.iter().filter_map(|member| member.hold);
        holds.filter(|held| self.is_valid(*held, now)).count() >= self.quorum_size()
    }

    /// Whether the guard sees that it holds the lock.
    fn holds(&self, client: &Client, now: u8) -> bool {
        client.phase == Some(Phase::Held) && self.has_quorum(client, now)
    }

    /// Runs a command; whether it was granted.
    fn run(&self, server: &mut Server, command: Command, now: u8) -> bool {
        let (keys, granted) = once(&self.runs, (server.keys, command, now), || {
            let Command { client, server: at, number, verb } = command;
            let time = server_time(now);
            let mut keyspace = self.keyspaces.at(server.keys, time);
            let (client, at) = (usize::from(client), usize::from(at));
            let owner = self.owners[client][at][usize::from(number)].clone();
            let (kind, name, lease) = (Kind::Reentrant, self.name.clone(), self.lease);
            let granted = match verb {
                Verb::Acquire => {
                    let acquire = HoldId { kind, name, owner }.acquire(lease, false, None);
                    let value = acquire.run(&mut keyspace, ServerTime(i64::MAX));
                    acquire.decode(value).unwrap().is_granted()
                }
                Verb::Renew => {
                    let renew = Renew::new(Layout::Counted, vec![Renewal { name, owner, lease }]);
                    let value = renew.run(&mut keyspace, ServerTime(i64::MAX));
                    renew.decode(value).unwrap().answers[0].loss().is_none()
                }
                Verb::Release => {
                    let release = HoldId { kind, name, owner }.release();
                    let _released = release.run(&mut keyspace, ServerTime(i64::MAX));
                    true
                }
            };
            (self.keyspaces.intern(&keyspace, time), granted)
        });
        server.keys = keys;
        granted
    }
}

// The clients.
impl CheckedMajority {
    fn ask(member: &mut Member, now: u8) {
        member.sent_at = Some(now);
        member.asks += 1;
    }

    /// The release of what an acquire was granted, or of what a copy of it may be.
    fn queue(member: &mut Member, number: u8, late_copy_deadline: Option<ServerTime>) {
        member.queued[usize::from(number)] = Some(Queued { late_copy_deadline });
    }

    /// A member ends as lost.
    fn lose(member: &mut Member, reason: LostReason) {
        if let Some(held) = member.hold.take()
            && loss_leaves_release(reason, true, None)
        {
            Self::queue(member, held.number, None);
        }
    }

    /// All members are released.
    fn release_all(client: &mut Client) {
        for member in &mut client.members {
            if let Some(held) = member.hold.take() {
                Self::queue(member, held.number, None);
            }
        }
    }

    fn decide(&self, client: &mut Client, now: u8) -> Result<(), Violation> {
        let is_acquiring = client.phase == Some(Phase::Acquiring);
        let is_valid = self.has_quorum(client, now);
        let granted = client.members.iter().filter(|member| member.hold.is_some()).count();
        let is_unseen = self.lacks(Mutation::GrantsCountedUnseen);
        let has_quorum = is_valid || (is_unseen && granted >= self.quorum_size());
        client.phase = client.phase.map(|phase| phase.after_acquire(has_quorum));
        if client.phase == Some(Phase::Closed) {
            if self.lacks(Mutation::MinoritiesKept) {
                client.members.iter_mut().for_each(|member| member.hold = None);
            }
            Self::release_all(client);
        }
        let returns_over = is_acquiring && client.phase == Some(Phase::Held) && !is_valid;
        if returns_over { Err(RETURNED_OVER) } else { Ok(()) }
    }

    fn see_loss(&self, client: &mut Client, now: u8) {
        let has_quorum = self.has_quorum(client, now);
        client.phase = client.phase.map(|phase| phase.after_loss(has_quorum));
        if client.phase == Some(Phase::Lost) {
            if self.lacks(Mutation::RestsKept) {
                client.members.iter_mut().for_each(|member| member.hold = None);
            }
            Self::release_all(client);
        }
    }

    /// The request for a member reaches the server, and its answer the client.
    fn answer(&self, state: &mut State, client: u8, server: u8) {
        let now = state.now;
        let own = &mut state.clients[usize::from(client)];
        let is_held = self.has_quorum(own, now);
        let member = &mut own.members[usize::from(server)];
        let Some(sent_at) = member.sent_at.take() else { return };
        let number = member.asks - 1;
        let command = Command { client, server, number, verb: Verb::Acquire };
        if !self.run(&mut state.servers[usize::from(server)], command, now) {
            return;
        }
        let held = Held { number, valid_until: self.trusted_until(sent_at) };
        let joins = self.lacks(Mutation::JoinsWithoutMajority) || is_held;
        let is_wanted = own.phase.is_some_and(|phase| phase.wants_more(|| joins));
        if is_wanted && self.is_valid(held, now) {
            Self::lose(member, LostReason::Expired);
            member.hold = Some(held);
        } else {
            Self::queue(member, number, None);
        }
    }

    fn stop_waiting(member: &mut Member, now: u8) {
        let Some(sent_at) = member.sent_at.take() else { return };
        let number = member.asks - 1;
        member.copy = Some((number, sent_at)).filter(|_| is_in_time(sent_at, now));
        let late_copy_deadline = Some(not_after(sent_at));
        if Leftover::of(false, late_copy_deadline) != Leftover::Nothing {
            Self::queue(member, number, late_copy_deadline);
        }
    }

    fn renew(&self, state: &mut State, client: u8, server: u8) {
        let now = state.now;
        let member = &mut state.clients[usize::from(client)].members[usize::from(server)];
        let Some(held) = &mut member.hold else { return };
        let command = Command { client, server, number: held.number, verb: Verb::Renew };
        if self.run(&mut state.servers[usize::from(server)], command, now) {
            let validity = self.validity(*held);
            let until = self.trusted_until(now);
            let end = self.origin + Duration::from_millis(until.into());
            if validity.extend(self.instant(now), end) {
                held.valid_until = until;
            }
        } else {
            Self::lose(member, LostReason::Deleted);
        }
    }

    fn send_release(&self, state: &mut State, client: u8, server: u8, number: u8) {
        let command = Command { client, server, number, verb: Verb::Release };
        self.run(&mut state.servers[usize::from(server)], command, state.now);
        let member = &mut state.clients[usize::from(client)].members[usize::from(server)];
        let place = &mut member.queued[usize::from(number)];
        let at = server_time(state.now);
        *place = place.filter(|queued| may_be_undone(queued.late_copy_deadline, at));
    }

    fn pass_time(&self, state: &mut State) {
        state.now += 1;
        let now = state.now;
        for server in &mut state.servers {
            let time = server_time(now);
            server.keys = self.keyspaces.intern(&self.keyspaces.at(server.keys, time), time);
            server.back_at = server.back_at.filter(|at| *at > now);
        }
        for client in &mut state.clients {
            client.seen_over |= client.phase == Some(Phase::Held) && !self.has_quorum(client, now);
            for member in &mut client.members {
                member.copy = member.copy.filter(|(_, sent_at)| is_in_time(*sent_at, now));
            }
        }
    }

    /// From here on everything is answered: is the lock free when all have released it?
    fn check_progress(&self, state: &State, arrives: bool) -> Result<(), Violation> {
        let mut calm = state.clone();
        for (client, server) in members() {
            let member = &mut calm.clients[usize::from(client)].members[usize::from(server)];
            Self::stop_waiting(member, calm.now);
            if let Some((number, _)) = member.copy.take().filter(|_| arrives) {
                let command = Command { client, server, number, verb: Verb::Acquire };
                self.run(&mut calm.servers[usize::from(server)], command, calm.now);
            }
        }
        for client in &mut calm.clients {
            self.decide(client, calm.now)?;
            self.see_loss(client, calm.now);
            Self::release_all(client);
        }
        for (client, server) in members() {
            for number in (0..).take(ASKS) {
                let member = &calm.clients[usize::from(client)].members[usize::from(server)];
                if member.queued[usize::from(number)].is_some() {
                    self.send_release(&mut calm, client, server, number);
                }
            }
        }
        let time = server_time(calm.now);
        let is_free = |server: &Server| self.keyspaces.is_empty(server.keys, time);
        if calm.servers.iter().all(is_free) { Ok(()) } else { Err(STUCK) }
    }
}

/// Each client with each server.
fn members() -> impl Iterator<Item = (u8, u8)> {
    (0..).take(CLIENTS).flat_map(|client| (0..).take(SERVERS).map(move |server| (client, server)))
}

impl Model for CheckedMajority {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let keys = self.keyspaces.intern(&Keyspace::default(), server_time(0));
        State {
            now: 0,
            servers: [Server { keys, back_at: None }; SERVERS],
            clients: [Client::default(); CLIENTS],
            given_up: 0,
            emptied: 0,
        }
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        let (limits, now) = (&self.limits, state.now);
        if now < limits.time {
            steps.push(Step::Time);
        }
        for (client, own) in (0..).zip(&state.clients) {
            let is_idle = own.members.iter().all(|one| one.sent_at.is_none() && one.hold.is_none());
            let has_asks = own.members.iter().all(|one| one.asks < limits.asks);
            match own.phase {
                Some(Phase::Acquiring) => steps.push(Step::Decide(client)),
                Some(Phase::Held) => {
                    steps.push(Step::Release(client));
                    if !self.has_quorum(own, now) {
                        steps.push(Step::SeeLoss(client));
                    }
                }
                _ if is_idle && has_asks && own.attempts < limits.attempts => {
                    steps.push(Step::Begin(client));
                }
                _ => {}
            }
        }
        for (client, server) in members() {
            let own = &state.clients[usize::from(client)];
            let member = &own.members[usize::from(server)];
            let is_there = state.servers[usize::from(server)].back_at.is_none();
            if let Some(sent_at) = member.sent_at {
                if is_there && is_in_time(sent_at, now) {
                    steps.push(Step::Answer(client, server));
                }
                if state.given_up < limits.given_up || !is_in_time(sent_at, now) {
                    steps.push(Step::GiveUp(client, server));
                }
            }
            if is_there && member.copy.is_some() {
                steps.push(Step::Arrive(client, server));
            }
            let is_member_held = member.hold.is_some_and(|held| self.is_valid(held, now));
            if let Some(held) = member.hold {
                let prolongs = self.trusted_until(now) > held.valid_until;
                if limits.renewals && is_there && prolongs {
                    steps.push(Step::Renew(client, server));
                }
                if !is_member_held {
                    steps.push(Step::SeeEnd(client, server));
                }
            }
            let is_free = member.sent_at.is_none() && member.queued.iter().all(Option::is_none);
            let is_missing = self.holds(own, now) && !is_member_held;
            if is_missing && is_free && member.asks < limits.asks {
                steps.push(Step::Ask(client, server));
            }
            for (number, queued) in (0..).zip(&member.queued) {
                if is_there && queued.is_some() {
                    steps.push(Step::SendRelease(client, server, number));
                }
            }
        }
        for (server, one) in (0..).zip(&state.servers) {
            if state.emptied < limits.emptied && one.back_at.is_none() {
                steps.push(Step::Empty(server));
            }
        }
    }

    fn after(&self, state: &State, step: Step) -> Result<State, Violation> {
        let (mut after, now) = (state.clone(), state.now);
        match step {
            Step::Time => self.pass_time(&mut after),
            Step::Begin(client) => {
                let own = &mut after.clients[usize::from(client)];
                own.attempts += 1;
                own.phase = Some(Phase::default());
                own.seen_over = false;
                own.members.iter_mut().for_each(|member| Self::ask(member, now));
            }
            Step::Decide(client) => self.decide(&mut after.clients[usize::from(client)], now)?,
            Step::Release(client) => {
                let own = &mut after.clients[usize::from(client)];
                own.phase = Some(Phase::Closed);
                Self::release_all(own);
            }
            Step::SeeLoss(client) => self.see_loss(&mut after.clients[usize::from(client)], now),
            Step::Ask(client, server) => {
                let own = &mut after.clients[usize::from(client)];
                let member = &mut own.members[usize::from(server)];
                Self::lose(member, LostReason::Expired);
                Self::ask(member, now);
            }
            Step::Answer(client, server) => self.answer(&mut after, client, server),
            Step::GiveUp(client, server) => {
                let own = &mut after.clients[usize::from(client)];
                let member = &mut own.members[usize::from(server)];
                let is_in_time = member.sent_at.is_some_and(|at| is_in_time(at, now));
                after.given_up += u8::from(is_in_time);
                Self::stop_waiting(member, now);
            }
            Step::Arrive(client, server) => {
                let own = &mut after.clients[usize::from(client)];
                if let Some((number, _)) = own.members[usize::from(server)].copy.take() {
                    let command = Command { client, server, number, verb: Verb::Acquire };
                    self.run(&mut after.servers[usize::from(server)], command, now);
                }
            }
            Step::Renew(client, server) => self.renew(&mut after, client, server),
            Step::SeeEnd(client, server) => {
                let own = &mut after.clients[usize::from(client)];
                Self::lose(&mut own.members[usize::from(server)], LostReason::Paused);
            }
            Step::SendRelease(client, server, number) => {
                self.send_release(&mut after, client, server, number);
            }
            Step::Empty(server) => {
                let keys = self.keyspaces.intern(&Keyspace::default(), server_time(now));
                let returns = self.lacks(Mutation::ReturnsEmpty);
                let back_at = (!returns).then_some(now + AWAY);
                after.servers[usize::from(server)] = Server { keys, back_at };
                after.emptied += 1;
            }
        }
        Ok(after)
    }

    fn check(&self, state: &State) -> Result<(), Violation> {
        let mut holders = state.clients.iter().filter(|client| self.holds(client, state.now));
        let first = holders.next();
        if holders.next().is_some() {
            return Err(TWO);
        }
        if first.is_some_and(|client| client.seen_over) {
            return Err(VALID_AGAIN);
        }
        if self.limits.progress {
            self.check_progress(state, false)?;
            self.check_progress(state, true)?;
        }
        Ok(())
    }

    fn mirrors(&self) -> usize {
        MIRRORS.len()
    }

    fn mirrored(&self, state: &State, mirror: usize) -> State {
        let (clients, servers) = MIRRORS[mirror];
        let mut mirrored = state.clone();
        for (from, client) in state.clients.iter().enumerate() {
            let to = &mut mirrored.clients[clients[from]];
            *to = *client;
            for (from, member) in client.members.iter().enumerate() {
                to.members[servers[from]] = *member;
            }
        }
        for (from, server) in state.servers.iter().enumerate() {
            let keys = self.keys_mirrored(server.keys, mirror);
            mirrored.servers[servers[from]] = Server { keys, ..*server };
        }
        mirrored
    }

    fn describe(&self, state: &State, step: Step, after: Option<&State>) -> String {
        let name = |client: u8| char::from(b'A' + client);
        let mut text = match step {
            Step::Time => "331 ms pass".to_owned(),
            Step::Begin(client) => format!("{} asks all servers", name(client)),
            Step::Decide(client) => format!("{}'s acquire ends", name(client)),
            Step::Release(client) => format!("{} drops its guard", name(client)),
            Step::SeeLoss(client) => format!("{} notices that its majority is gone", name(client)),
            Step::Ask(client, server) => format!("{} asks server {server} again", name(client)),
            Step::Answer(client, server) => format!("server {server} answers {}", name(client)),
            Step::GiveUp(client, server) => {
                format!("{} waits for server {server} no longer", name(client))
            }
            Step::Arrive(client, server) => {
                format!("{}'s acquire reaches server {server} late", name(client))
            }
            Step::Renew(client, server) => format!("{} renews at server {server}", name(client)),
            Step::SeeEnd(client, server) => {
                format!("{} notices that its hold at server {server} is over", name(client))
            }
            Step::SendRelease(client, server, _) => {
                format!("{} releases at server {server}", name(client))
            }
            Step::Empty(server) => format!("server {server} loses its keys"),
        };
        for (number, client) in (0..).zip(&state.clients) {
            let holds = |state: &State| self.holds(&state.clients[usize::from(number)], state.now);
            match (self.holds(client, state.now), after.is_some_and(holds)) {
                (false, true) => text = format!("{text}; {} holds the lock", name(number)),
                (true, false) if after.is_some() => {
                    text = format!("{text}; {} holds it no longer", name(number));
                }
                _ => {}
            }
        }
        text
    }
}

/// The other orders of clients and servers in which a state is the same.
const MIRRORS: [([usize; CLIENTS], [usize; SERVERS]); 11] = [
    ([1, 0], [0, 1, 2]),
    ([0, 1], [1, 0, 2]),
    ([1, 0], [1, 0, 2]),
    ([0, 1], [0, 2, 1]),
    ([1, 0], [0, 2, 1]),
    ([0, 1], [2, 1, 0]),
    ([1, 0], [2, 1, 0]),
    ([0, 1], [1, 2, 0]),
    ([1, 0], [1, 2, 0]),
    ([0, 1], [2, 0, 1]),
    ([1, 0], [2, 0, 1]),
];

impl CheckedMajority {
    /// The same keyspace for the clients and servers in another order.
    fn keys_mirrored(&self, keys: Keys, mirror: usize) -> Keys {
        once(&self.mirrored, (keys, mirror), || {
            let (clients, servers) = MIRRORS[mirror];
            let mut names = Vec::new();
            for (client, server) in members() {
                let (client, server) = (usize::from(client), usize::from(server));
                let new = &self.owners[clients[client]][servers[server]];
                for (owner, new) in self.owners[client][server].iter().zip(new) {
                    names.push((owner.to_string(), new.to_string()));
                }
            }
            self.keyspaces.renamed(keys, |text| {
                let renamed = names.iter().find(|(owner, _)| owner == text);
                renamed.map_or_else(|| text.to_owned(), |(_, new)| new.clone())
            })
        })
    }
}
