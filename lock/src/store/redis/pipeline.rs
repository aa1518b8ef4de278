//! Many operations on one connection: some are sent while others are still being answered, so neither side waits for
//! the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::connection::{Broken, Connection, Limit};
use super::eviction;
use super::redirection::Redirection;
use super::server::Server;
use super::wire::{ROUNDS, Verdict, is_a_replicas, is_unknown_to_it, judge, pack, unsettled};
use crate::op::Operation;
use crate::store::{Failure, Request, Stream};

/// A connection of its own, so that a renewal never waits behind callers.
pub(super) struct Pipeline {
    server: Arc<Server>,
    connection: Mutex<Option<Connection>>,
    /// Whether the connection is new, and the server behind it perhaps another.
    is_new: AtomicBool,
    /// Whether the server may be asked what it evicts: not after it has kept that question unanswered.
    tells_eviction: AtomicBool,
}

/// What belongs to another node, which the server has named.
pub(super) type Astray<S> =
    Vec<(Request<<S as Stream>::Operation, <S as Stream>::Note>, Option<Redirection>)>;

/// One operation on its way.
struct UnderWay<O, N> {
    request: Request<O, N>,
    /// Whether the script's text is to be sent, and not only its hash.
    whole: bool,
    /// How often it was sent before.
    rounds: usize,
    limit: Limit,
}

impl Pipeline {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            connection: Mutex::new(None),
            is_new: AtomicBool::new(false),
            tells_eviction: AtomicBool::new(true),
        }
    }

    /// Waits for what is under way.
    pub(super) fn close(&self) {
        *self.connection.lock() = None;
    }

    /// The policy of a server that may evict locks, if the connection was made since this was asked last: the server
    /// may have been started anew, or be another.
    pub(super) fn eviction_of_new_server(&self, timeout: Duration) -> Option<String> {
        // Relaxed, here and below: only the renewal thread streams and asks.
        if !self.is_new.load(Ordering::Relaxed) || !self.tells_eviction.load(Ordering::Relaxed) {
            return None;
        }
        let mut kept = self.connection.lock();
        let mut connection = kept.take()?;
        self.is_new.store(false, Ordering::Relaxed);
        match eviction::ask(&mut connection, &mut Limit::after(timeout)) {
            Ok(policy) => {
                *kept = Some(connection);
                policy
            }
            Err(broken) => {
                // A server that keeps it unanswered would end each new connection. One that broke says nothing of it.
                let tells = !broken.is_late();
                self.tells_eviction.store(tells, Ordering::Relaxed);
                None
            }
        }
    }

    /// Sends what the stream gives, and hands it the answers, except to what can be put `astray`. A failure is that of the
    /// connection, and everything under way has been answered with it.
    pub(super) fn run<S: Stream>(
        &self,
        stream: &mut S,
        mut astray: Option<&mut Astray<S>>,
    ) -> Result<(), Failure> {
        let mut kept = self.connection.lock();
        // Taken out, and put back when every reply was read: if the stream panics, what is still to come must not be read
        // as the reply to something else.
        let mut connection = kept.take().filter(|kept| self.server.is_current(kept));
        let (mut under_way, mut again) = (VecDeque::new(), Vec::new());
        loop {
            if under_way.len() <= stream.refill_at() {
                let filled = self.fill(stream, &mut connection, &mut under_way, &mut again);
                if let Err(failure) = filled {
                    under_way.extend(again);
                    fail(stream, under_way, &failure);
                    return Err(failure);
                }
            }
            let (Some(mut first), Some(open)) = (under_way.pop_front(), connection.as_mut()) else {
                *kept = connection;
                return Ok(());
            };
            let value = match open.receive(&mut first.limit.refresh()) {
                Ok(value) => value,
                Err(error) => {
                    let not_after = self.server.clock.at(first.limit.deadline());
                    let failure = self.server.failure(Broken::Unanswered(error), not_after);
                    under_way.push_front(first);
                    under_way.extend(again);
                    fail(stream, under_way, &failure);
                    return Err(failure);
                }
            };
            let Request { operation, note, timeout } = first.request;
            let answer = match judge(&self.server.clock, value) {
                Verdict::Answer(value) => operation.decode(value).map_err(Failure::unexpected),
                Verdict::Refused { code, message } => {
                    if let Some(astray) = astray.as_deref_mut()
                        && let Some(named) = self.named(&code, &message)
                    {
                        astray.push((Request { operation, note, timeout }, Some(named)));
                        continue;
                    }
                    let (moved, unknown) = (is_a_replicas(&code), is_unknown_to_it(&code));
                    let failure = if unknown {
                        self.server.unauthenticated(format!("{code} {message}"))
                    } else {
                        Failure::Refused { code, message }
                    };
                    if moved {
                        self.server.is_no_master(open.era);
                    }
                    if moved || unknown {
                        stream.answered(note, Err(failure.clone()));
                        under_way.extend(again);
                        fail(stream, under_way, &failure);
                        return Err(failure);
                    }
                    Err(failure)
                }
                // Nothing ran. Its time is counted from when it was sent first, or some rounds would take as many times
                // as long.
                Verdict::SendWhole | Verdict::SendAgain
                    if first.rounds + 1 >= ROUNDS || first.limit.refresh().left().is_err() =>
                {
                    Err(unsettled())
                }
                verdict => {
                    again.push(UnderWay {
                        request: Request { operation, note, timeout },
                        whole: first.whole || matches!(verdict, Verdict::SendWhole),
                        rounds: first.rounds + 1,
                        limit: first.limit,
                    });
                    continue;
                }
            };
            stream.answered(note, answer);
        }
    }

    /// The node that the server has named instead of answering.
    fn named(&self, code: &str, message: &str) -> Option<Redirection> {
        Redirection::parse(code, message, self.server.address()?)
    }

    /// Sends as many as there is room for, over a new connection if there is none.
    fn fill<S: Stream>(
        &self,
        stream: &mut S,
        connection: &mut Option<Connection>,
        under_way: &mut VecDeque<UnderWay<S::Operation, S::Note>>,
        again: &mut Vec<UnderWay<S::Operation, S::Note>>,
    ) -> Result<(), Failure> {
        let before = under_way.len();
        while under_way.len() < stream.at_once() {
            let next = again.pop().or_else(|| {
                let request = stream.next()?;
                let limit = Limit::after(request.timeout);
                Some(UnderWay { request, whole: false, rounds: 0, limit })
            });
            let Some(next) = next else { break };
            under_way.push_back(next);
        }
        let Some(mut limit) = longest(under_way, before) else {
            return Ok(());
        };
        if connection.is_none() {
            *connection = Some(self.server.connect(&mut limit)?);
            self.is_new.store(true, Ordering::Relaxed);
            // What it took to connect is not theirs to bear.
            for sent in under_way.iter_mut() {
                sent.limit = Limit::after(sent.request.timeout);
            }
            limit = longest(under_way, before).unwrap_or(limit);
        }
        let Some(open) = connection else { return Ok(()) };
        let mut packed = Vec::new();
        for next in under_way.range(before..) {
            let not_after = self.server.clock.at(next.limit.deadline());
            let (operation, channels) = (&next.request.operation, self.server.channels);
            packed.extend_from_slice(&pack(operation, not_after, next.whole, channels));
        }
        let not_after = self.server.clock.at(limit.deadline());
        // The first of them may have left whole.
        open.send(&packed, &mut limit)
            .map_err(|error| self.server.failure(Broken::Unanswered(error), not_after))
    }
}

/// The limit of that which may take longest, of those from a place on.
fn longest<O, N>(under_way: &VecDeque<UnderWay<O, N>>, from: usize) -> Option<Limit> {
    under_way.range(from..).map(|next| next.limit).max_by_key(|limit| limit.deadline())
}

/// Whatever is under way gets no answer.
fn fail<S: Stream>(
    stream: &mut S,
    under_way: VecDeque<UnderWay<S::Operation, S::Note>>,
    failure: &Failure,
) {
    for sent in under_way {
        stream.answered(sent.request.note, Err(failure.clone()));
    }
}
