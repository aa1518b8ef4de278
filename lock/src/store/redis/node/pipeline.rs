//! A connection with many operations in flight, for renewals.
//!
//! Each server has one pipeline, so a renewal never waits for a connection behind callers. The
//! connection also carries the `INFO` that recognizes a restarted server.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::model::sync::Mutex;
use crate::ops::{Operation as _, Untyped};
use crate::store::failure::Failure;
use crate::store::pipeline::{PipelineRequest, PipelineSource};
use crate::store::redis::net::connection::{Broken, Connection};
use crate::store::redis::net::deadline::Deadline;
use crate::store::redis::net::socket::Socket;
use crate::store::redis::node::info::{self, Info};
use crate::store::redis::node::request::{
    MAX_SENDS, ReplyAction, classify, pack, too_many_resends,
};
use crate::store::redis::node::server::Server;
use crate::store::redis::resp::redirect::Redirection;

/// A connection with many operations in flight.
pub(crate) struct Pipeline {
    server: Arc<Server>,
    connection: Mutex<Option<Connection>>,
    /// The socket of the connection, also while in use.
    socket: Mutex<Weak<Socket>>,
    /// Whether the connection is new and `INFO` not yet queried: the server may be new, too.
    is_new: AtomicBool,
    /// Number of consecutive timeouts of `INFO`.
    info_timeouts: AtomicU32,
}

/// Number of consecutive timeouts after which `INFO` is no longer sent, as each timeout costs a
/// connection. A single timeout may be a slow server, just started.
const MAX_INFO_TIMEOUTS: u32 = 3;

/// Operations that belong to another node of the cluster, and the redirection to the node, if
/// known.
pub(crate) type Redirected<S> = Vec<(
    PipelineRequest<<S as PipelineSource>::Operation, <S as PipelineSource>::Tag>,
    Option<Redirection>,
)>;

/// An operation that was sent, or is to be sent again.
struct InFlightRequest<S: PipelineSource> {
    request: PipelineRequest<S::Operation, S::Tag>,
    /// Whether the script's text is sent instead of its hash.
    send_body: bool,
    /// Number of earlier sends.
    earlier_sends: usize,
    deadline: Deadline,
    /// A time before the send.
    sent_at: Instant,
}

/// The operations of one [`run`](Pipeline::run) that have no reply yet.
struct Window<S: PipelineSource> {
    /// Unanswered operations, the oldest first.
    in_flight: VecDeque<InFlightRequest<S>>,
    /// Operations to send again with the next write.
    resends: Vec<InFlightRequest<S>>,
}

impl Pipeline {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            server,
            connection: Mutex::new(None),
            socket: Mutex::default(),
            is_new: AtomicBool::new(false),
            info_timeouts: AtomicU32::new(0),
        }
    }

    /// Closes the connection, once the operations in flight are answered.
    pub(crate) fn close(&self) {
        *self.connection.lock() = None;
    }

    /// Connects if there is no connection, or if the server has closed the connection.
    pub(crate) fn ensure_connected(&self, timeout: Duration) -> Result<(), Failure> {
        let mut retained = self.connection.lock();
        let is_usable = |retained: &Connection| {
            self.server.is_current(retained.generation) && retained.is_open()
        };
        if !retained.as_ref().is_some_and(is_usable) {
            *retained = None;
            *retained = Some(self.connect(&mut Deadline::after(timeout))?);
        }
        Ok(())
    }

    /// Queries `INFO` once on a new connection, which may lead to a restarted or different server.
    /// Returns the `INFO`, with `true` if the server was restarted. `None` without a new
    /// connection, without a reply, and after [`MAX_INFO_TIMEOUTS`].
    pub(crate) fn info_of_new_server(&self, timeout: Duration) -> Option<(Info, bool)> {
        // Relaxed, here and below: only the renewal thread uses the pipeline.
        let timeouts = self.info_timeouts.load(Ordering::Relaxed);
        if !self.is_new.load(Ordering::Relaxed) || timeouts >= MAX_INFO_TIMEOUTS {
            return None;
        }
        let mut retained = self.connection.lock();
        let mut connection = retained.take()?;
        self.is_new.store(false, Ordering::Relaxed);
        let connections = self.server.connections.load(Ordering::Relaxed);
        match connection.call(&info::command(), &mut Deadline::after(timeout)) {
            Ok(reply) => {
                let info = Info::of(&reply);
                self.info_timeouts.store(0, Ordering::Relaxed);
                let was_restarted = self.server.learn_run_id(&info, connection.generation);
                self.server.learn_info(&info, connections);
                *retained = Some(connection);
                Some((info, was_restarted))
            }
            Err(broken) => {
                // A broken connection does not show whether the server would have answered.
                self.info_timeouts
                    .store(timeouts + u32::from(broken.is_timeout()), Ordering::Relaxed);
                None
            }
        }
    }

    /// Sends the operations of `source` and passes the replies to `source`, until `source` has no
    /// more operations.
    ///
    /// With `redirected`, operations that another node of the cluster serves are collected there
    /// instead. After a failure of the connection, every operation in flight has received the
    /// failure.
    pub(crate) fn run<S: PipelineSource>(
        &self,
        source: &mut S,
        redirected: Option<&mut Redirected<S>>,
    ) -> Result<(), Failure> {
        let mut retained = self.connection.lock();
        // The connection is put back only after every reply was read. If `source` panics before,
        // the connection is closed: a late reply would be read as the reply to a later operation.
        let mut connection =
            retained.take().filter(|retained| self.server.is_current(retained.generation));
        let mut window = Window { in_flight: VecDeque::new(), resends: Vec::new() };
        let ended = self.exchange(source, &mut connection, &mut window, redirected);
        match &ended {
            Ok(()) => *retained = connection,
            Err(failure) => window.fail(source, failure),
        }
        ended
    }

    /// Sends the operations of `source` and handles the replies, until no operation is left. On a
    /// failure of the connection, the unanswered operations are left in `window`.
    fn exchange<S: PipelineSource>(
        &self,
        source: &mut S,
        connection: &mut Option<Connection>,
        window: &mut Window<S>,
        mut redirected: Option<&mut Redirected<S>>,
    ) -> Result<(), Failure> {
        loop {
            // 1. Send more operations when few are in flight: one write carries many, and the
            //    server has work meanwhile.
            if window.in_flight.len() <= source.refill_at() {
                self.refill(source, connection, window)?;
            }

            // 2. Receive a reply. The server answers in order, so the reply belongs to the oldest
            //    operation.
            let (Some(mut oldest), Some(open)) =
                (window.in_flight.pop_front(), connection.as_mut())
            else {
                return Ok(());
            };
            let reply = match open.receive(&mut oldest.deadline.refresh()) {
                Ok(reply) => reply,
                Err(error) => {
                    let not_after = self.server.clock.at(oldest.deadline.instant());
                    window.in_flight.push_front(oldest);
                    return Err(self.server.no_reply(Broken::Unanswered(error), not_after));
                }
            };

            // 3. Pass on the reply, send the operation again, or collect the operation for another
            //    node.
            let operation = &oldest.request.operation;
            let (untyped, sent_at) = (Untyped(operation), oldest.sent_at);
            let answer = match classify(self.server.reply_context(), &untyped, sent_at, reply) {
                ReplyAction::Return(value) => operation.decode(value).map_err(Failure::unexpected),
                ReplyAction::Fail { code, message } => {
                    if let Some(redirected) = redirected.as_deref_mut()
                        && let Some(to) = self.redirection(&code, &message)
                    {
                        redirected.push((oldest.request, Some(to)));
                        continue;
                    }
                    let (failure, is_unusable) =
                        self.server.refused(code, message, open.generation);
                    if is_unusable {
                        source.on_reply(oldest.request.tag, Err(failure.clone()));
                        return Err(failure);
                    }
                    Err(failure)
                }
                // Nothing ran. The first deadline also holds for the resends; otherwise a few
                // resends would take several times the timeout.
                action @ (ReplyAction::SendBody | ReplyAction::Resend) => {
                    oldest.earlier_sends += 1;
                    oldest.send_body |= matches!(action, ReplyAction::SendBody);
                    if oldest.earlier_sends < MAX_SENDS && oldest.deadline.refresh().left().is_ok()
                    {
                        window.resends.push(oldest);
                        continue;
                    }
                    Err(too_many_resends())
                }
            };
            source.on_reply(oldest.request.tag, answer);
        }
    }

    /// Makes a connection, which [`abort`](Self::abort) can shut, and marks the connection as new.
    fn connect(&self, deadline: &mut Deadline) -> Result<Connection, Failure> {
        let connection = self.server.connect(deadline)?;
        *self.socket.lock() = connection.socket();
        self.is_new.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    /// Shuts the connection, even while a thread waits for a reply.
    pub(crate) fn abort(&self) {
        if let Some(socket) = self.socket.lock().upgrade() {
            socket.shut();
        }
    }

    /// Parses an error reply of the server. `None` if the reply is no redirection, or if the
    /// server's address is not fixed.
    fn redirection(&self, code: &str, message: &str) -> Option<Redirection> {
        Redirection::parse(code, message, self.server.address()?)
    }

    /// Sends operations until as many are in flight as `source` allows. Connects if there is no
    /// connection.
    fn refill<S: PipelineSource>(
        &self,
        source: &mut S,
        connection: &mut Option<Connection>,
        window: &mut Window<S>,
    ) -> Result<(), Failure> {
        // 1. Take the resends first, then the next operations of `source`.
        let in_flight = &mut window.in_flight;
        let first_new = in_flight.len();
        while in_flight.len() < source.max_in_flight() {
            let next = window.resends.pop().or_else(|| {
                let request = source.next()?;
                let deadline = Deadline::after(request.timeout);
                let sent_at = deadline.read_at();
                Some(InFlightRequest {
                    request,
                    send_body: false,
                    earlier_sends: 0,
                    deadline,
                    sent_at,
                })
            });
            let Some(next) = next else { break };
            in_flight.push_back(next);
        }
        let Some(mut deadline) = latest_deadline(in_flight, first_new) else { return Ok(()) };

        // 2. Connect if necessary. The time of connecting does not count for the operations.
        if connection.is_none() {
            *connection = Some(self.connect(&mut deadline)?);
            for sent in in_flight.iter_mut() {
                sent.deadline = Deadline::after(sent.request.timeout);
                sent.sent_at = sent.deadline.read_at();
            }
            deadline = latest_deadline(in_flight, first_new).unwrap_or(deadline);
        }
        let Some(open) = connection else { return Ok(()) };

        // 3. Send all new operations in one write.
        let mut packed = Vec::new();
        for next in in_flight.range(first_new..) {
            let not_after = self.server.clock.at(next.deadline.instant());
            let (operation, channels) = (&next.request.operation, self.server.channels);
            pack(&mut packed, &Untyped(operation), not_after, next.send_body, channels);
        }
        let not_after = self.server.clock.at(deadline.instant());
        // After an error, part of the bytes may be sent, so each operation may have run.
        open.send(&packed, &mut deadline)
            .map_err(|error| self.server.no_reply(Broken::Unanswered(error), not_after))
    }
}

/// Returns the latest deadline of the requests from index `from` on. `None` without such a request.
fn latest_deadline<S: PipelineSource>(
    in_flight: &VecDeque<InFlightRequest<S>>,
    from: usize,
) -> Option<Deadline> {
    in_flight.range(from..).map(|next| next.deadline).max_by_key(|deadline| deadline.instant())
}

impl<S: PipelineSource> Window<S> {
    /// Gives every operation the failure of the connection.
    fn fail(self, source: &mut S, failure: &Failure) {
        for sent in self.in_flight.into_iter().chain(self.resends) {
            source.on_reply(sent.request.tag, Err(failure.clone()));
        }
    }
}
