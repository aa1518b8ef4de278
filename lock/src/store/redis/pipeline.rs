//! Many operations on one connection: some are sent while others are still being answered, so neither side waits for
//! the other.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::connection::{Broken, Connection, Limit};
use super::server::Server;
use super::wire::{ROUNDS, Verdict, judge, pack, unsettled};
use crate::op::Operation;
use crate::store::{Failure, Request, Stream};

/// A connection of its own, so that a renewal never waits behind callers.
pub(super) struct Pipeline {
    server: Arc<Server>,
    connection: Mutex<Option<Connection>>,
}

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
        Self { server, connection: Mutex::new(None) }
    }

    pub(super) fn close(&self) {
        *self.connection.lock() = None;
    }

    /// Sends what the stream gives, and hands it the answers.
    pub(super) fn run<S: Stream>(&self, stream: &mut S) {
        let mut kept = self.connection.lock();
        // Taken out, and put back when every reply was read: if the stream panics, what is still to come must not be read
        // as the reply to something else.
        let mut connection = kept.take();
        let (mut under_way, mut again) = (VecDeque::new(), Vec::new());
        loop {
            if under_way.len() <= stream.refill_at() {
                let filled = self.fill(stream, &mut connection, &mut under_way, &mut again);
                if let Err(failure) = filled {
                    under_way.extend(again);
                    return fail(stream, under_way, &failure);
                }
            }
            let (Some(mut first), Some(open)) = (under_way.pop_front(), connection.as_mut()) else {
                *kept = connection;
                return;
            };
            let value = match open.receive(&mut first.limit.refresh()) {
                Ok(value) => value,
                Err(error) => {
                    let not_after = self.server.clock.at(first.limit.deadline());
                    let failure = self.server.failure(Broken::Unanswered(error), not_after);
                    under_way.push_front(first);
                    under_way.extend(again);
                    return fail(stream, under_way, &failure);
                }
            };
            let Request { operation, note, timeout } = first.request;
            let answer = match judge(&self.server.clock, value) {
                Verdict::Answer(value) => operation.decode(value).map_err(Failure::unexpected),
                Verdict::Refused { code, message } => {
                    let moved = code == "READONLY";
                    let failure = Failure::Refused { code, message };
                    if moved {
                        // A replica that was promoted away from us: look for the master anew.
                        stream.answered(note, Err(failure.clone()));
                        under_way.extend(again);
                        return fail(stream, under_way, &failure);
                    }
                    Err(failure)
                }
                Verdict::SendWhole | Verdict::SendAgain if first.rounds + 1 >= ROUNDS => {
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

    /// Sends as many as there is room for, over a new connection if there is none.
    fn fill<S: Stream>(
        &self,
        stream: &mut S,
        connection: &mut Option<Connection>,
        under_way: &mut VecDeque<UnderWay<S::Operation, S::Note>>,
        again: &mut Vec<UnderWay<S::Operation, S::Note>>,
    ) -> Result<(), Failure> {
        let mut packed = Vec::new();
        let mut last = None;
        while under_way.len() < stream.at_once() {
            let next = again.pop().or_else(|| {
                let request = stream.next()?;
                let limit = Limit::after(request.timeout);
                Some(UnderWay { request, whole: false, rounds: 0, limit })
            });
            let Some(mut next) = next else { break };
            next.limit = Limit::after(next.request.timeout);
            let not_after = self.server.clock.at(next.limit.deadline());
            packed.extend_from_slice(&pack(&next.request.operation, not_after, next.whole));
            last = Some((next.limit, not_after));
            under_way.push_back(next);
        }
        let Some((mut limit, not_after)) = last else {
            return Ok(());
        };
        let open = if let Some(open) = connection {
            open
        } else {
            let open = connection.insert(self.server.connect(&mut limit)?);
            // What it took to connect is not theirs to bear.
            for sent in under_way.iter_mut() {
                sent.limit = Limit::after(sent.request.timeout);
            }
            open
        };
        // The first of them may have left whole.
        open.send(&packed, &mut limit)
            .map_err(|error| self.server.failure(Broken::Unanswered(error), not_after))
    }
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
