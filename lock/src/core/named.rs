//! The common part of named objects' methods: the client and the name, calls, and the wait for a
//! grant.

use std::sync::Arc;
use std::time::Duration;

use crate::core::client_core::ClientCore;
use crate::core::tries::{Try, WaitParameters, Waited, wait_for};
use crate::error::Error;
use crate::events::acquires::{AcquireEnd, AcquireKind, MetricsLabel};
use crate::model::name::{LockName, Prefix};
use crate::model::wait::Wait;
use crate::model::wait_graph::Need;
use crate::model::wait_mode::WaitMode;
use crate::ops::{Number, Operation, RequestId};

/// The name of an object, and its client. Each use of an invalid name is an error.
#[derive(Clone, Debug)]
pub(crate) struct NamedObject {
    core: Arc<ClientCore>,
    name: Result<LockName, Error>,
}

/// The extra time for which the server retains the answer to a call, after the last copy of the
/// call may arrive. A failed acquire is rolled back within this time; otherwise its grant stays.
pub(crate) const DEDUP_MARGIN: Duration = Duration::from_secs(60);

impl NamedObject {
    /// Makes the object `name` under `prefix`. Sends nothing.
    pub(crate) fn new(core: Arc<ClientCore>, prefix: &Prefix, name: &str) -> Self {
        Self { core, name: prefix.name(name) }
    }

    /// Registers the key that `derive` returns for the name. Each use of the object is an error if
    /// the key is also the key of another name of the client.
    pub(crate) fn sharing(mut self, derive: fn(&LockName) -> Arc<str>) -> Self {
        self.name = self.name.and_then(|name| self.core.shared_keys.register(name, derive));
        self
    }

    /// Returns the client and the name. Returns an error in a child of a fork, after a shutdown of
    /// the client, or for an invalid name.
    pub(crate) fn current(&self) -> Result<(Arc<ClientCore>, LockName), Error> {
        Ok((self.core.running()?, self.name.clone()?))
    }

    /// Sends the operation that `operation` makes for the name and a new request id, until the
    /// server answers, and returns the reply.
    pub(crate) fn ask<O: Operation>(
        &self,
        operation: impl FnOnce(LockName, RequestId) -> O,
    ) -> Result<O::Reply, Error> {
        let (core, name) = self.current()?;
        let operation = operation(name.clone(), begin_request(&core, &name));
        core.ask(&operation, &name)
    }

    /// Reads the number stored under the name; zero without a key. Returns [`Error::WrongType`] for
    /// another text.
    pub(crate) fn number(&self) -> Result<i64, Error> {
        let (core, name) = self.current()?;
        let number = core.ask(&Number(name.clone()), &name)?;
        number.ok_or_else(|| not_a_number(&name))
    }
}

/// Makes the error of a text where a number is expected.
pub(crate) fn not_a_number(name: &LockName) -> Error {
    Error::WrongType { key: name.shown(), found: "a string that is not a number".to_owned() }
}

/// Waits for a grant of `server_try` in the queue of `channel`, which other waiters of the name
/// share. Counts the wait as an acquire of `kind`. Returns `None` if the time is over.
pub(crate) fn wait_for_grant<T: Try>(
    core: &ClientCore,
    kind: AcquireKind,
    (name, channel): (&LockName, &Arc<str>),
    wait: Wait<'_>,
    server_try: &mut T,
) -> Result<Option<T::Grant>, Error> {
    let began = core.now();
    let wait = wait.begin(&*core.clock);
    let need = Some(Need::Any);
    let parameters =
        WaitParameters { need, ..WaitParameters::new(name, channel, WaitMode::Shared, wait) };
    let waited = wait_for(core, parameters, server_try);
    let (counters, label) = (core.watchdog.context.counters.acquires(), MetricsLabel::NONE);
    if let Ok(Waited { granted: Some(_), was_refused }) = waited {
        let waited_for = || core.now().saturating_duration_since(began);
        counters.acquired(kind, label, waited_for, was_refused);
    } else {
        counters.ended(kind, label, AcquireEnd::without_grant(waited.as_ref().err()));
    }
    Ok(waited?.granted)
}

/// Begins a call of a request sequence on `name`, and returns its id. The server retains the
/// answer, so a copy of the call counts once.
pub(crate) fn begin_request(core: &ClientCore, name: &LockName) -> RequestId {
    core.requests.begin(&core.id, name, dedup_ttl(core))
}

/// Returns how long the server retains the answer to a call of a request sequence.
pub(crate) fn dedup_ttl(core: &ClientCore) -> Duration {
    core.settings.retry_timeout() * 2 + DEDUP_MARGIN
}

/// Returns `count`, or an error if `count` exceeds 31 bits: Java counts permits with signed numbers
/// of 32 bits.
pub(crate) fn check_count(count: u32) -> Result<u32, Error> {
    if i32::try_from(count).is_ok() {
        return Ok(count);
    }
    let reason = "the most is 2,147,483,647".to_owned();
    Err(Error::InvalidCount { count: count.into(), reason })
}
