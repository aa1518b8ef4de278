//! What the methods of a named thing share: whom they ask, how long they go on, and how they wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use crate::call::{Answer, Attempts, GaveUp, Patience};
use crate::error::Error;
use crate::name::{LockName, Prefix};
use crate::op::{Number, Operation, Request};
use crate::process::Process;
use crate::wait::{Attempt, Kind, Until, Waited};

/// A name on a client. The name may be a wrong one; that is an error when it is used.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    process: Arc<Process>,
    name: Result<LockName, Error>,
}

/// How long somebody is willing to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish<'a> {
    /// Not at all: one try.
    Once,
    Until(Until<'a>),
}

/// A call that is begun just before a deadline has at least this long, so that a short wait is not an error.
const SHORTEST_CALL: Duration = Duration::from_millis(10);

/// For how long the server remembers a request beyond what its copies may take: an acquire that was given up is undone
/// within that time, or what it took stays taken.
const REMEMBERED: Duration = Duration::from_secs(60);

impl Named {
    pub(crate) fn new(process: Arc<Process>, prefix: &Prefix, name: &str) -> Self {
        Self { process, name: prefix.name(name) }
    }

    /// The client in the process that runs now, and the name.
    pub(crate) fn current(&self) -> Result<(Arc<Process>, LockName), Error> {
        let process = self.process.current()?;
        if process.is_shut_down() {
            return Err(Error::Shutdown);
        }
        Ok((process, self.name.clone()?))
    }

    /// Sends what `operation` makes of the name and a new request, until it is answered.
    pub(crate) fn ask<O: Operation>(
        &self,
        operation: impl FnOnce(LockName, Request) -> O,
    ) -> Result<O::Reply, Error> {
        let (process, name) = self.current()?;
        let request = Request::new(&name, &process.id.draw(), remembered(&process));
        let operation = operation(name.clone(), request);
        answered(process.call(&operation), operation.name(), &name).map(|answer| answer.reply)
    }

    /// The number that stands there, zero if there is none.
    pub(crate) fn number(&self) -> Result<i64, Error> {
        let (process, name) = self.current()?;
        let operation = Number(name.clone());
        let answer = answered(process.call(&operation), operation.name(), &name)?;
        answer.reply.ok_or_else(|| Error::WrongType { name: name.shown() })
    }

    /// A wish to wait for at most `wait`. One beyond what the clock can say is for ever; one of zero is not to wait.
    pub(crate) fn within<'a>(
        &self,
        wait: Duration,
        cancel: Option<&'a Receiver<()>>,
    ) -> Result<Wish<'a>, Error> {
        if wait.is_zero() {
            return Ok(Wish::Once);
        }
        let now = self.process.current()?.now();
        Ok(Wish::Until(Until { deadline: now.checked_add(wait), cancel }))
    }

    /// How long it is until `deadline`.
    pub(crate) fn until(&self, deadline: Instant) -> Result<Duration, Error> {
        Ok(self.process.current()?.clock.remaining(deadline))
    }
}

impl<'a> Wish<'a> {
    /// To wait for ever, unless cancelled.
    pub(crate) fn forever(cancel: Option<&'a Receiver<()>>) -> Self {
        Self::Until(Until { deadline: None, cancel })
    }
}

/// Tries until `attempt` is granted something or the wish ends: `None`. An error of `attempt` ends it too.
pub(crate) fn wait<G>(
    process: &Process,
    name: &LockName,
    channel: &Arc<str>,
    wish: Wish<'_>,
    mut attempt: impl FnMut(&Patience<'_>) -> Result<Attempt<G>, Error>,
) -> Result<Option<G>, Error> {
    let Wish::Until(end) = wish else {
        return match attempt(&patience(process, None, None))? {
            Attempt::Granted(granted, _) => Ok(Some(granted)),
            Attempt::Busy(..) => Ok(None),
        };
    };
    let waited = process.channels.wait(&process.store, channel, Kind::Shared, end, || {
        attempt(&patience(process, end.deadline, end.cancel))
    })?;
    match waited {
        Waited::Granted(granted) => Ok(Some(granted)),
        Waited::TimedOut => Ok(None),
        Waited::Cancelled => Err(Error::Cancelled { name: name.shown() }),
        Waited::Closed => Err(Error::Shutdown),
    }
}

/// What one try keeps trying for: until its end, a cancellation or a shutdown.
fn patience<'a>(
    process: &'a Process,
    deadline: Option<Instant>,
    cancel: Option<&'a Receiver<()>>,
) -> Patience<'a> {
    let now = process.now();
    let patience = now + process.settings.patience();
    let until = deadline.map_or(patience, |end| patience.min(end.max(now + SHORTEST_CALL)));
    Patience {
        until,
        attempt: process.settings.command_timeout,
        attempts: Attempts::UntilAnswered,
        closed: Some(process.channels.closed()),
        cancel,
    }
}

/// How long the server remembers a request.
pub(crate) fn remembered(process: &Process) -> Duration {
    process.settings.patience() * 2 + REMEMBERED
}

/// An answer, or what its caller is told instead.
pub(crate) fn answered<R>(
    answer: Result<Answer<R>, GaveUp>,
    operation: &'static str,
    name: &LockName,
) -> Result<Answer<R>, Error> {
    answer.map_err(|gave_up| gave_up.failure.into_error(operation, name))
}

/// Java counts permits with 32 bits.
pub(crate) fn countable(count: u32) -> Result<u32, Error> {
    if i32::try_from(count).is_ok() {
        return Ok(count);
    }
    let reason = "the most is 2,147,483,647".to_owned();
    Err(Error::InvalidCount { count: i64::from(count), reason })
}
