//! The network between the clients and the server, and what goes wrong in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashed_wheel::Clock;

use crate::ops::keyspace::Publication;
use crate::ops::value::Value;
use crate::store::redis::net::socket::{Carrier, Network, Peer};
use crate::store::redis::resp::decode::Decoder;
use crate::testing::modelled::process::{Process, after, at, note, process};
use crate::testing::modelled::sync::{SystemClock, below};
use crate::testing::simulation::server::{Server, encode};
use crate::testing::simulation::slots::{Node, Serving};

/// A network with one server. Clones are the same.
#[derive(Clone)]
pub(crate) struct Net(Arc<Mutex<State>>);

struct State {
    port: u16,
    server: Server,
    /// Of a cluster, with the other node.
    node: Option<Node>,
    other: Option<Net>,
    links: BTreeMap<u64, Link>,
    drawn: u64,
    /// The usual time of a message, in microseconds.
    latency: u64,
    /// For each process: until when its messages are slow and how slow, and until when none
    /// arrives.
    slow: BTreeMap<u8, (Instant, Duration)>,
    parted: BTreeMap<u8, Instant>,
    /// Until when the server does nothing, or is down.
    hangs: Option<Instant>,
    down: Option<Instant>,
    /// When the server lost keys, or its clock was set forward.
    losses: Vec<Instant>,
    /// When it was restarted last, unless its clock was set afterwards.
    restarted: Option<Instant>,
    /// When each client was told last that another owner has the lock.
    refused: BTreeMap<u8, Instant>,
    /// Until when something is wrong.
    disturbed: Option<Instant>,
}

/// Several networks with one server each, by the servers' ports.
#[derive(Clone)]
pub(crate) struct Servers(pub(crate) Vec<Net>);

/// How long a message between two nodes takes.
const BETWEEN_NODES: Duration = Duration::from_micros(200);

/// The port of the first server.
pub(crate) const FIRST_PORT: u16 = 7000;

/// A connection, as the server sees it.
struct Link {
    process: u8,
    peer: Peer,
    decoder: Decoder,
    /// What is on its way to the server, in the order in which it was sent.
    sent: VecDeque<Sent>,
    input: VecDeque<u8>,
    channels: BTreeSet<String>,
    /// The last command was `ASKING`.
    is_asking: bool,
    /// When the last bytes of each direction arrive: bytes keep their order.
    to_server: Instant,
    to_client: Instant,
    /// It breaks after this number of further bytes to the server, or to the client.
    cut: Option<(Direction, usize)>,
}

enum Sent {
    Bytes(Vec<u8>),
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// The bytes that have arrived.
struct Arrived<'a>(&'a mut VecDeque<u8>);

impl Read for Arrived<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { self.0.read(buffer) }
    }
}

/// One end of a link.
struct LinkCarrier {
    net: Net,
    link: u64,
}

impl Network for Net {
    fn connect(&self, _: u16, peer: Peer) -> Arc<dyn Carrier> {
        let now = SystemClock.now();
        let Process(process) = process().unwrap();
        let mut state = self.state();
        state.drawn += 1;
        let link = state.drawn;
        let arrives = state.arrival(process, now);
        state.links.insert(
            link,
            Link {
                process,
                peer,
                decoder: Decoder::new(),
                sent: VecDeque::new(),
                input: VecDeque::new(),
                channels: BTreeSet::new(),
                is_asking: false,
                to_server: arrives,
                to_client: arrives,
                cut: None,
            },
        );
        drop(state);
        let net = self.clone();
        at(arrives, move || net.open(link));
        Arc::new(LinkCarrier { net: self.clone(), link })
    }
}

impl Network for Servers {
    fn connect(&self, port: u16, peer: Peer) -> Arc<dyn Carrier> {
        self.0[usize::from(port - FIRST_PORT)].connect(port, peer)
    }
}

/// The nodes of a cluster, or one server.
impl Servers {
    /// The longest usual time of a message.
    pub(crate) fn latency(&self) -> Duration {
        self.0.iter().map(Net::latency).max().unwrap_or_default()
    }

    pub(crate) fn losses(&self) -> Vec<Instant> {
        self.0.iter().flat_map(Net::losses).collect()
    }

    pub(crate) fn disturbed_until(&self) -> Option<Instant> {
        self.0.iter().filter_map(Net::disturbed_until).max()
    }

    /// When one was restarted last, unless a clock was set afterwards.
    pub(crate) fn restarted(&self) -> Option<Instant> {
        let disturbed = self.0.iter().filter(|net| !net.losses().is_empty());
        let restarted: Option<Vec<_>> = disturbed.map(Net::restarted).collect();
        restarted?.into_iter().max()
    }

    pub(crate) fn refused(&self, client: u8) -> Option<Instant> {
        self.0.iter().filter_map(|net| net.refused(client)).max()
    }

    pub(crate) fn any(&self, mut is: impl FnMut(&mut Server) -> bool) -> bool {
        self.0.iter().filter(|net| net.with_server(&mut is)).count() > 0
    }
}

impl Carrier for LinkCarrier {
    fn carry(&self, bytes: Vec<u8>) {
        self.send(Sent::Bytes(bytes));
    }

    fn close(&self) {
        self.send(Sent::Close);
    }
}

impl LinkCarrier {
    fn send(&self, sent: Sent) {
        let mut state = self.net.state();
        let Some(arrives) = state.next_arrival(self.link, Direction::ToServer) else { return };
        let Some(link) = state.links.get_mut(&self.link) else { return };
        link.sent.push_back(sent);
        drop(state);
        let (net, link) = (self.net.clone(), self.link);
        at(arrives, move || net.arrive(link));
    }
}

impl State {
    /// When a message arrives that is sent now.
    fn arrival(&self, process: u8, now: Instant) -> Instant {
        let usual = self.latency / 2 + u64::try_from(below(1000)).unwrap() * self.latency / 1000;
        let mut delay = Duration::from_micros(usual);
        if let Some((until, most)) = self.slow.get(&process)
            && *until > now
            && below(3) == 0
        {
            delay += most.mul_f64(f64::from(u32::try_from(below(1000)).unwrap()) / 1000.0);
        }
        let parted = self.parted.get(&process).copied();
        parted.map_or(now, |parted| parted.max(now)) + delay
    }

    fn next_arrival(&mut self, link: u64, direction: Direction) -> Option<Instant> {
        let process = self.links.get(&link)?.process;
        let arrives = self.arrival(process, SystemClock.now());
        let link = self.links.get_mut(&link)?;
        let last = match direction {
            Direction::ToServer => &mut link.to_server,
            Direction::ToClient => &mut link.to_client,
        };
        *last = arrives.max(*last);
        Some(*last)
    }

    /// A node deletes the keys of slots that it does not serve.
    fn drop_foreign_keys(&mut self) {
        if let Some(node) = self.node.as_ref().filter(|node| node.serving == Serving::Elsewhere) {
            let keys = self.server.keys(SystemClock.now());
            for key in keys.iter().filter(|key| node.has_in_slot(key)) {
                self.server.delete(key);
            }
        }
    }

    fn disturb(&mut self, until: Instant) {
        self.disturbed = Some(self.disturbed.map_or(until, |before| before.max(until)));
    }
}

impl Net {
    pub(crate) fn new(port: u16) -> Self {
        let now = SystemClock.now();
        let latency = [40, 400, 4000][below(3)];
        let state = State {
            port,
            server: Server::new(port, now),
            node: None,
            other: None,
            links: BTreeMap::new(),
            drawn: 0,
            latency,
            slow: BTreeMap::new(),
            parted: BTreeMap::new(),
            hangs: None,
            down: None,
            losses: Vec::new(),
            restarted: None,
            refused: BTreeMap::new(),
            disturbed: None,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Never locked while another thread may run.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn port(&self) -> u16 {
        self.state().port
    }

    pub(crate) fn latency(&self) -> Duration {
        Duration::from_micros(self.state().latency)
    }

    pub(crate) fn losses(&self) -> Vec<Instant> {
        self.state().losses.clone()
    }

    /// Until when something is or was wrong.
    pub(crate) fn disturbed_until(&self) -> Option<Instant> {
        self.state().disturbed
    }

    pub(crate) fn restarted(&self) -> Option<Instant> {
        self.state().restarted
    }

    pub(crate) fn refused(&self, client: u8) -> Option<Instant> {
        self.state().refused.get(&client).copied()
    }

    pub(crate) fn disturb(&self, until: Instant) {
        self.state().disturb(until);
    }

    pub(crate) fn with_server<R>(&self, look: impl FnOnce(&mut Server) -> R) -> R {
        look(&mut self.state().server)
    }

    pub(crate) fn connections(&self) -> usize {
        self.state().links.len()
    }

    /// The run is over. Nothing refers to what it made.
    pub(crate) fn clear(&self) {
        let mut state = self.state();
        let all = (std::mem::take(&mut state.links), state.other.take());
        drop(state);
        drop(all);
    }

    fn open(&self, link: u64) {
        let mut state = self.state();
        let is_down = state.down.is_some_and(|until| until > SystemClock.now());
        let Some(own) = state.links.get(&link) else { return };
        let peer = own.peer.clone();
        if is_down {
            drop(state.links.remove(&link));
        }
        drop(state);
        if is_down { peer.reset() } else { peer.open() }
    }

    /// The next of what was sent arrives at the server, bytes as far as the connection is not cut.
    fn arrive(&self, link: u64) {
        let now = SystemClock.now();
        let mut state = self.state();
        if let Some(hangs) = state.hangs.filter(|hangs| *hangs > now) {
            drop(state);
            let net = self.clone();
            at(hangs, move || net.arrive(link));
            return;
        }
        let Some(own) = state.links.get_mut(&link) else { return };
        let Some(Sent::Bytes(mut bytes)) = own.sent.pop_front() else {
            let closed = state.links.remove(&link);
            drop(state);
            drop(closed);
            return;
        };
        let written = bytes.len();
        let is_cut = cut(&mut own.cut, Direction::ToServer, &mut bytes);
        own.input.extend(bytes);
        let peer = own.peer.clone();
        loop {
            let Some(own) = state.links.get_mut(&link) else { break };
            match own.decoder.next(&mut Arrived(&mut own.input)) {
                Ok(Value::Array(words)) => {
                    let text = |word| if let Value::Text(text) = word { text } else { panic!() };
                    let words: Vec<String> = words.into_iter().map(text).collect();
                    self.answer(&mut state, link, &words);
                }
                Ok(other) => panic!("{other:?} is no command"),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        if is_cut {
            drop(state.links.remove(&link));
        }
        drop(state);
        peer.delivered(written);
        if is_cut {
            note(|| format!("connection {link} breaks within a request"));
            peer.reset();
        }
    }

    fn answer(&self, state: &mut State, link: u64, words: &[String]) {
        let now = SystemClock.now();
        let State { server, links, node, .. } = &mut *state;
        let Some(own) = links.get_mut(&link) else { return };
        let is_asking = std::mem::take(&mut own.is_asking);
        let text = |text: &str| Value::Text(text.to_owned());
        let (value, published) = match words {
            [verb, channel] if verb == "SUBSCRIBE" || verb == "SSUBSCRIBE" => {
                let asked = node.as_ref().filter(|_| verb == "SSUBSCRIBE");
                let redirection = asked.and_then(|node| node.redirection(false, &[channel], 1));
                let value = redirection.unwrap_or_else(|| {
                    own.channels.insert(channel.clone());
                    of_channel(&verb.to_lowercase(), channel, 1)
                });
                (value, Vec::new())
            }
            [verb, channel] if verb == "UNSUBSCRIBE" || verb == "SUNSUBSCRIBE" => {
                own.channels.remove(channel);
                (of_channel(&verb.to_lowercase(), channel, 0), Vec::new())
            }
            [verb] if verb == "PING" && !own.channels.is_empty() => {
                (Value::Array(vec![text("pong"), text("")]), Vec::new())
            }
            [verb] if verb == "ASKING" => {
                own.is_asking = true;
                (text("OK"), Vec::new())
            }
            [verb, _] if verb == "CLUSTER" => {
                (node.as_ref().map_or(Value::Nil, Node::slots), Vec::new())
            }
            [verb, ..] if verb == "PUBSUB" => {
                let message = "unknown subcommand".to_owned();
                let refusal = Value::Refusal { code: "ERR".to_owned(), message };
                let is_sharded = node.as_ref().is_some_and(|node| node.is_sharded);
                let value = if is_sharded { Value::Array(Vec::new()) } else { refusal };
                (value, Vec::new())
            }
            words => {
                let (keys, here) = server.keys_of(words, now);
                let receivers = |channel: &str| {
                    links.values().filter(|link| link.channels.contains(channel)).count()
                };
                let redirection =
                    node.as_ref().and_then(|node| node.redirection(is_asking, &keys, here));
                redirection.map_or_else(
                    || server.run(words, now, receivers),
                    |redirection| (redirection, Vec::new()),
                )
            }
        };
        if words[0] != "TIME" && words[0] != "INFO" && words[0] != "PING" {
            let process = state.links.get(&link).map_or(0, |link| link.process);
            note(|| {
                let (port, shown) = (state.port, shown(words, state, now));
                format!("server {port}: {shown} of client {process} -> {value:?}")
            });
        }
        let is_acquire = words[0].starts_with("EVAL") && state.server.is_acquire(&words[1]);
        let is_refusal = is_acquire
            && match &value {
                Value::Integer(_) => true,
                // With the owner.
                Value::Array(parts) => {
                    matches!(parts.as_slice(), [Value::Integer(_), Value::Text(_)])
                }
                _ => false,
            };
        let mut bytes = Vec::new();
        encode(&value, &mut bytes);
        self.send(state, link, bytes, is_refusal);
        for message in published {
            self.publish(state, &message);
            if state.node.as_ref().is_some_and(|node| !node.is_sharded) {
                let other = state.other.clone();
                after(BETWEEN_NODES, move || other.iter().for_each(|other| other.hear(&message)));
            }
        }
    }

    fn publish(&self, state: &mut State, message: &Publication) {
        let is_sharded = state.node.as_ref().is_some_and(|node| node.is_sharded);
        let kind = if is_sharded { "smessage" } else { "message" };
        let parts = [kind, &message.channel, &message.payload];
        let parts = parts.map(|part| Value::Text(part.to_owned()));
        let mut bytes = Vec::new();
        encode(&Value::Array(parts.to_vec()), &mut bytes);
        let to: Vec<u64> = state
            .links
            .iter()
            .filter(|(_, link)| link.channels.contains(&message.channel))
            .map(|(number, _)| *number)
            .collect();
        for link in to {
            self.send(state, link, bytes.clone(), false);
        }
    }

    /// A message of the other node, for the subscribers of this one.
    fn hear(&self, message: &Publication) {
        let mut state = self.state();
        if let Some(hangs) = state.hangs.filter(|hangs| *hangs > SystemClock.now()) {
            drop(state);
            let (net, message) = (self.clone(), message.clone());
            at(hangs, move || net.hear(&message));
            return;
        }
        self.publish(&mut state, message);
    }

    pub(crate) fn set_node(&self, node: Node, other: Self) {
        let mut state = self.state();
        state.node = Some(node);
        state.other = Some(other);
    }

    pub(crate) fn serving(&self) -> Option<Serving> {
        self.state().node.as_ref().map(|node| node.serving)
    }

    pub(crate) fn serve(&self, serving: Serving) {
        let mut state = self.state();
        if let Some(node) = &mut state.node {
            node.serving = serving;
        }
        state.drop_foreign_keys();
        if serving == Serving::Elsewhere {
            self.end_channels(&mut state);
        }
    }

    /// Sharded channels end with their slot.
    fn end_channels(&self, state: &mut State) {
        if !state.node.as_ref().is_some_and(|node| node.is_sharded) {
            return;
        }
        let ended =
            |(number, link): (&u64, &mut Link)| (*number, std::mem::take(&mut link.channels));
        let ended: Vec<_> = state.links.iter_mut().map(ended).collect();
        for (link, channels) in ended {
            for channel in channels {
                let mut bytes = Vec::new();
                encode(&of_channel("sunsubscribe", &channel, 0), &mut bytes);
                self.send(state, link, bytes, false);
            }
        }
    }

    pub(crate) fn migrate(&self, key: &str, to: &Self) {
        let mut state = self.state();
        state.server.migrate(key, &mut to.state().server, SystemClock.now());
    }

    fn send(&self, state: &mut State, link: u64, bytes: Vec<u8>, is_refusal: bool) {
        let Some(arrives) = state.next_arrival(link, Direction::ToClient) else { return };
        let net = self.clone();
        at(arrives, move || net.deliver(link, bytes, is_refusal));
    }

    fn deliver(&self, link: u64, mut bytes: Vec<u8>, is_refusal: bool) {
        let mut state = self.state();
        let Some(own) = state.links.get_mut(&link) else { return };
        let is_cut = cut(&mut own.cut, Direction::ToClient, &mut bytes);
        let (peer, process) = (own.peer.clone(), own.process);
        if is_cut {
            drop(state.links.remove(&link));
        } else if is_refusal {
            state.refused.insert(process, SystemClock.now());
        }
        drop(state);
        peer.reply(&bytes);
        if is_cut {
            note(|| format!("connection {link} breaks within a reply"));
            peer.shut();
        }
    }

    /// Messages of a process take up to `most` until then.
    pub(crate) fn slow_down(&self, process: u8, most: Duration, until: Instant) {
        let mut state = self.state();
        state.slow.insert(process, (until, most));
        state.disturb(until + most * 2);
    }

    /// What a process sends or is sent arrives after that.
    pub(crate) fn part(&self, process: u8, until: Instant) {
        let mut state = self.state();
        state.parted.insert(process, until);
        state.disturb(until);
    }

    /// A connection of the process breaks after this number of further bytes.
    pub(crate) fn cut(&self, process: u8, direction: Direction, bytes: usize) {
        let mut state = self.state();
        let links: Vec<u64> = state
            .links
            .iter()
            .filter(|(_, link)| link.process == process)
            .map(|(number, _)| *number)
            .collect();
        if !links.is_empty() {
            let link = links[below(links.len())];
            if let Some(link) = state.links.get_mut(&link) {
                link.cut = Some((direction, bytes));
            }
        }
    }

    /// The server does nothing until then.
    pub(crate) fn hang(&self, until: Instant) {
        let mut state = self.state();
        // It may hang already, and for longer.
        state.hangs = state.hangs.max(Some(until));
        state.disturb(until);
    }

    /// Every connection breaks, and none is made until then. Afterwards the server lacks what was
    /// written since `since`, or without it all keys.
    pub(crate) fn restart(&self, until: Instant, since: Option<Instant>) {
        let mut state = self.state();
        state.down = Some(until);
        state.disturb(until);
        state.losses.push(SystemClock.now());
        state.restarted = Some(SystemClock.now());
        state.server.restart(since);
        state.drop_foreign_keys();
        let links = std::mem::take(&mut state.links);
        drop(state);
        for link in links.into_values() {
            link.peer.reset();
        }
    }

    /// Moves the server's clock by this number of milliseconds.
    pub(crate) fn set_clock(&self, by: i64) {
        let mut state = self.state();
        let now = SystemClock.now();
        state.server.set_clock(by);
        state.losses.push(now);
        // A hold that is gone from now on may have expired, which only its renewal finds.
        state.restarted = None;
        state.disturb(now);
    }
}

/// What a server says of a channel.
fn of_channel(what: &str, channel: &str, count: i64) -> Value {
    let texts = [what, channel].map(|text| Value::Text(text.to_owned()));
    Value::Array(texts.into_iter().chain([Value::Integer(count)]).collect())
}

/// The rest of what may pass. True if the connection breaks now.
fn cut(cut: &mut Option<(Direction, usize)>, here: Direction, bytes: &mut Vec<u8>) -> bool {
    let Some((direction, left)) = cut else { return false };
    if *direction != here {
        return false;
    }
    if bytes.len() < *left {
        *left -= bytes.len();
        return false;
    }
    bytes.truncate(*left);
    true
}

/// A command with the name of its operation, and who holds the lock then.
fn shown(words: &[String], state: &mut State, now: Instant) -> String {
    let is_script = words[0].starts_with("EVAL");
    let begin = if is_script { 3 } else { 1 };
    let rest = words.get(begin..).unwrap_or_default().join(" ");
    let verb = if is_script { state.server.verb_of(&words[1]) } else { words[0].clone() };
    let holders = state.server.fields("a", now);
    format!("{verb} {rest} (a: {holders:?})")
}
