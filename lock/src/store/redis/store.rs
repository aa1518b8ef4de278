//! One server as a store: an operation is packed, sent on a connection of the pool, and its reply read.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::Cmd;

use super::address::Address;
use super::connection::{Broken, Connection, Limit};
use super::eviction;
use super::pool::Pool;
use super::server::Server;
use super::subscription::Subscription;
use crate::op::{Argument, Form, Operation};
use crate::store::{Failure, Listener};
use crate::value::{ServerTime, Value};

/// A single server.
pub(crate) struct Redis {
    server: Arc<Server>,
    pool: Pool,
    /// The connection for many operations at once. It is apart from the pool, so that a renewal never waits behind
    /// callers.
    bulk: Mutex<Option<Connection>>,
    subscription: Subscription,
}

/// How often one call is packed anew because the server did not know the script, or our idea of its time was wrong.
/// Each cures itself by the first answer; more than this means that somebody flushes scripts or sets clocks in a loop.
const ROUNDS: usize = 4;

impl Redis {
    pub(crate) fn new(
        address: Address,
        command_timeout: Duration,
        connections: usize,
        listener: Weak<dyn Listener>,
    ) -> Self {
        let server = Arc::new(Server::new(address, command_timeout));
        Self {
            pool: Pool::new(Arc::clone(&server), connections.saturating_sub(2).max(1)),
            bulk: Mutex::new(None),
            subscription: Subscription::new(Arc::clone(&server), listener),
            server,
        }
    }

    /// Makes a connection and keeps it for the first caller.
    pub(crate) fn connect(&self, timeout: Duration) -> Result<(), Failure> {
        let connection = self.pool.take(&mut Limit::after(timeout))?;
        self.pool.give_back(connection);
        Ok(())
    }

    /// The policy of a server that may evict locks. `None` if it never evicts or does not say, within `timeout`.
    pub(crate) fn eviction(&self, timeout: Duration) -> Option<String> {
        let mut limit = Limit::after(timeout);
        let mut connection = self.pool.take(&mut limit).ok()?;
        if let Ok(policy) = eviction::ask(&mut connection, &mut limit) {
            self.pool.give_back(connection);
            return policy;
        }
        self.pool.discard(connection);
        None
    }

    pub(crate) fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    pub(crate) fn connections_made(&self) -> u64 {
        self.server.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn close(&self) {
        self.pool.close();
        self.subscription.close();
        *self.bulk.lock() = None;
    }

    pub(crate) fn execute<O: Operation>(
        &self,
        operation: &O,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let mut limit = Limit::after(timeout);
        let mut connection = self.pool.take(&mut limit)?;
        let mut whole = false;
        for _ in 0..ROUNDS {
            let not_after = self.server.clock.at(limit.deadline());
            let packed = pack(operation, not_after, whole);
            let value = match connection.call(&packed, &mut limit) {
                Ok(value) => value,
                Err(broken) => {
                    self.pool.discard(connection);
                    return Err(self.server.failure(broken, not_after));
                }
            };
            match self.judge(value) {
                Verdict::Answer(value) => {
                    self.pool.give_back(connection);
                    return Ok(value);
                }
                Verdict::SendWhole => whole = true,
                Verdict::SendAgain => {}
                Verdict::Refused { code, message } => {
                    // A replica that was promoted away from us says READONLY: look for the master anew.
                    if code == "READONLY" {
                        self.pool.discard(connection);
                    } else {
                        self.pool.give_back(connection);
                    }
                    return Err(Failure::Refused { code, message });
                }
            }
            limit.refresh();
        }
        self.pool.give_back(connection);
        Err(unsettled())
    }

    /// All at once on one connection: written together, then the replies read in order.
    pub(crate) fn execute_all<O: Operation>(
        &self,
        operations: &[O],
        timeout: Duration,
    ) -> Vec<Result<Value, Failure>> {
        let mut limit = Limit::after(timeout);
        let mut results: Vec<Result<Value, Failure>> =
            operations.iter().map(|_| Err(unsettled())).collect();
        let mut bulk = self.bulk.lock();
        // The places in `operations` that still want an answer, and whether to send the script's text.
        let mut open: Vec<(usize, bool)> =
            (0..operations.len()).map(|place| (place, false)).collect();
        for _ in 0..ROUNDS {
            if open.is_empty() {
                break;
            }
            let mut connection =
                match bulk.take().map_or_else(|| self.server.connect(&mut limit), Ok) {
                    Ok(connection) => connection,
                    Err(failure) => {
                        fail(&mut results, &open, &failure);
                        return results;
                    }
                };
            let not_after = self.server.clock.at(limit.deadline());
            let packed: Vec<u8> = open
                .iter()
                .filter_map(|&(place, whole)| Some((operations.get(place)?, whole)))
                .flat_map(|(operation, whole)| pack(operation, not_after, whole))
                .collect();
            if let Err(error) = connection.send(&packed, &mut limit) {
                // The first of them may have left whole.
                let failure = self.server.failure(Broken::Unanswered(error), not_after);
                fail(&mut results, &open, &failure);
                return results;
            }
            let mut again = Vec::new();
            for (answered, &(place, whole)) in open.iter().enumerate() {
                let value = match connection.receive(&mut limit) {
                    Ok(value) => value,
                    Err(error) => {
                        let failure = self.server.failure(Broken::Unanswered(error), not_after);
                        fail(&mut results, open.get(answered..).unwrap_or_default(), &failure);
                        fail(&mut results, &again, &unsettled());
                        return results;
                    }
                };
                limit.refresh();
                let result = match self.judge(value) {
                    Verdict::Answer(value) => Ok(value),
                    Verdict::Refused { code, message } => Err(Failure::Refused { code, message }),
                    Verdict::SendWhole => {
                        again.push((place, true));
                        continue;
                    }
                    Verdict::SendAgain => {
                        again.push((place, whole));
                        continue;
                    }
                };
                if let Some(slot) = results.get_mut(place) {
                    *slot = result;
                }
            }
            *bulk = Some(connection);
            open = again;
        }
        results
    }

    /// What a reply asks of the sender.
    fn judge(&self, value: Value) -> Verdict {
        if let Some(now) = value.as_late() {
            self.server.clock.learn(now);
            return Verdict::SendAgain;
        }
        match value {
            Value::Refusal { code, .. } if code == "NOSCRIPT" => Verdict::SendWhole,
            Value::Refusal { code, message } => Verdict::Refused { code, message },
            value => Verdict::Answer(value),
        }
    }
}

/// Every way in which a reply can go on. NOSCRIPT and LATE both mean that nothing ran, so sending again is safe.
enum Verdict {
    Answer(Value),
    SendWhole,
    SendAgain,
    Refused { code: String, message: String },
}

fn fail(results: &mut [Result<Value, Failure>], places: &[(usize, bool)], failure: &Failure) {
    for &(place, _) in places {
        if let Some(slot) = results.get_mut(place) {
            *slot = Err(failure.clone());
        }
    }
}

/// Nothing ran, and trying again at once did not help.
fn unsettled() -> Failure {
    Failure::Refused {
        code: "TRYAGAIN".to_owned(),
        message: "the server's scripts or clock kept changing".to_owned(),
    }
}

/// The bytes of one operation: by the script's hash, or whole, which also teaches the server the script.
fn pack<O: Operation>(operation: &O, not_after: ServerTime, whole: bool) -> Vec<u8> {
    let keys = operation.keys();
    let arguments = operation.arguments(not_after);
    let texts: usize = keys.iter().map(|key| key.len()).sum();
    // The verb, the hash and the number of keys come first; a number or an owner takes less than 64 bytes.
    let parts = 3 + keys.len() + arguments.len();
    let mut command = Cmd::with_capacity(parts, texts + 64 * parts);
    match O::FORM {
        Form::Command(verb) => {
            command.arg(verb);
        }
        Form::Script(script) => {
            if whole {
                command.arg("EVAL").arg(script.source());
            } else {
                command.arg("EVALSHA").arg(script.hash(digest));
            }
            command.arg(keys.len());
        }
    }
    for key in keys {
        command.arg(key);
    }
    for argument in arguments {
        match argument {
            Argument::Text(text) => command.arg(text),
            Argument::Number(number) => command.arg(number),
        };
    }
    command.get_packed_command()
}

fn digest(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Redis")
            .field("server", &self.server)
            .field("pool", &self.pool)
            .field("subscription", &self.subscription)
            .finish_non_exhaustive()
    }
}
