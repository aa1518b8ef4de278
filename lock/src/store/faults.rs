//! Decides which commands to a store in memory meet which faults.
//!
//! Pure: a fault follows from the number of the command, the script and the seed. A request is lost
//! or runs at once; late copies are not simulated. Faults are ordinary `Failure`s of the store, so
//! the client's own retry loop and failover handling react to them.

use std::collections::BTreeMap;
use std::time::Duration;

/// A fault for one command of a client on a [`Memory`](crate::Memory).
///
/// The argument of [`Faults::on_command`], [`Faults::on_renewal`] and
/// [`Memory::fail_next`](crate::Memory::fail_next).
///
/// The client reacts as on a network. The client sends the command again, returns an error that
/// says whether the command may have run, or detects the loss of a lock. Delays and pauses take
/// time on the clock of the [`Memory`](crate::Memory), and advance a
/// [`ManualClock`](crate::ManualClock).
///
/// ```
/// use wheellock::{Client, Fault, Memory};
///
/// let memory = Memory::new();
/// let client = Client::builder().in_memory(&memory).build()?;
/// memory.fail_next(Fault::Refuse("NOPERM No permissions to access a key"));
/// let error = client.lock("orders:42").try_lock().unwrap_err();
/// assert!(!error.is_retryable() && !error.is_outcome_unknown());
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The connection breaks before the command has reached the server. The command does not run,
    /// but the client cannot know that the command did not run.
    LoseRequest,
    /// The command runs, and the connection breaks before the reply arrives.
    LoseReply,
    /// The command runs, and the messages that the command publishes are lost. Waiters then find
    /// the change by polling, within a second.
    LoseMessages,
    /// No connection can be made. The command does not run, and the client knows that the command
    /// did not run.
    Unreachable,
    /// The server replies with this text as an error, and does not run the command. The first word
    /// of the text is the code. Some codes, such as `READONLY` and `LOADING`, [are
    /// transient](crate::Error::Refused).
    Refuse(&'static str),
    /// The command runs, and its reply is delayed by this time. If the delay is at least the
    /// timeout of an attempt, the attempt ends without a reply after the timeout. The release of a
    /// dropped guard waits for no delay.
    Delay(Duration),
    /// The command runs, this process then pauses for this time, as by `SIGSTOP`, and then the
    /// reply arrives. On a clock that a program cannot advance, only the calling thread pauses.
    Pause(Duration),
    /// The first key of the command is deleted before the command runs, as by an eviction. The
    /// first key is the lock, the semaphore, or the first of the locks in a renewal.
    LoseKey,
    /// A replica without the last writes takes over, and runs the command.
    ///
    /// The takeover takes no time. On a stopped clock the next fencing token can therefore equal a
    /// lost token. A real takeover takes longer than a microsecond, the resolution of tokens.
    FailOver {
        /// The number of lost write commands, at most 16. Only a write that ran after faults were
        /// set can be lost.
        lost_writes: usize,
    },
    /// The server's clock is set forward by this time before the command runs: leases end earlier.
    ClockForward(Duration),
    /// The server's clock is set back by this time before the command runs: leases end later.
    ClockBack(Duration),
}

/// Faults for the commands on a [`Memory`](crate::Memory), assigned by number or drawn from a seed.
///
/// Created by [`new`](Self::new) or [`seeded`](Self::seeded), and put into effect by
/// [`Memory::set_faults`](crate::Memory::set_faults).
///
/// Commands are numbered from zero, in the order of their arrival at the [`Memory`](crate::Memory).
/// Each attempt of a call is one command. Commands of the program's calls and guards have one
/// sequence of numbers. Renewals, which client threads send, have a second sequence: a renewal
/// changes no number of the program's commands. Other commands of client threads meet only faults
/// drawn from a seed. [`Client::ping`](crate::Client::ping) is no such command, and meets no fault.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use wheellock::{Client, Fault, Faults, LostReason, ManualClock, Memory};
///
/// let clock = ManualClock::new();
/// let memory = Memory::with_clock(Arc::new(clock.clone()));
/// let client = Client::builder().in_memory(&memory).build()?;
/// // The first reply is lost, so the client asks again; then the first renewal finds no key.
/// memory.set_faults(
///     Faults::new().on_command(0, Fault::LoseReply).on_renewal(0, Fault::LoseKey),
/// );
///
/// let guard = client.lock("orders:42").lock()?;
/// assert_eq!(memory.commands(), 2);
/// clock.advance(Duration::from_secs(10));
/// assert_eq!(guard.lost().try_recv(), Ok(LostReason::Deleted));
/// # drop(guard);
/// # Ok::<(), wheellock::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    commands: BTreeMap<u64, Fault>,
    renewals: BTreeMap<u64, Fault>,
    seed: Option<u64>,
    loses_data: bool,
}

/// The source of a command. Each source has its own counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A call or a guard of the program.
    Program,
    /// A renewal thread.
    Renewal,
    /// A renewal thread, for a command other than a renewal: a repeated release, or a client
    /// record.
    Background,
}

/// The most writes that a failover can lose.
pub(crate) const MAX_LOST_WRITES: usize = 16;

/// With a seed, one in `ONE_OF` commands meets a fault.
const ONE_OF: u64 = 4;

impl Faults {
    /// Creates an empty set of faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates faults that are drawn from `seed`: each command meets a fault with a probability of
    /// a quarter.
    ///
    /// The faults are network faults, transient refusals, and delays and pauses of up to 41 s. For
    /// the same seed, the same numbers of commands meet the same faults. A fault assigned by number
    /// replaces the drawn fault of its command.
    ///
    /// Under these faults two holders never both see [`is_held`](crate::LockGuard::is_held) true.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use wheellock::{Client, Faults, ManualClock, Memory};
    ///
    /// for seed in 0..20 {
    ///     let memory = Memory::with_clock(Arc::new(ManualClock::new()));
    ///     let client = Client::builder().in_memory(&memory).build()?;
    ///     memory.set_faults(Faults::seeded(seed));
    ///     match client.lock("orders:42").try_lock() {
    ///         Ok(guard) => drop(guard),
    ///         Err(error) => assert!(error.is_retryable(), "seed {seed}: {error}"),
    ///     }
    /// }
    /// # Ok::<(), wheellock::Error>(())
    /// ```
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { seed: Some(seed), ..Self::default() }
    }

    /// Returns the same faults, and also draws the faults of a server that does not retain its
    /// keys: lost keys, failovers that lose up to three writes, and clock changes of up to 41 s.
    ///
    /// Under these faults two holders can both see [`is_held`](crate::LockGuard::is_held) true.
    /// Only a resource that refuses old [fencing tokens](crate::FencedGuard::token) is then safe.
    /// The method has no effect without a [seed](Self::seeded).
    #[must_use]
    pub fn with_data_loss(self) -> Self {
        Self { loses_data: true, ..self }
    }

    /// Assigns `fault` to the command with this `number` among the commands of the program's calls
    /// and guards, counted from zero.
    ///
    /// Renewals are not counted. A second fault for the same number replaces the first.
    #[must_use]
    pub fn on_command(mut self, number: u64, fault: Fault) -> Self {
        self.commands.insert(number, fault);
        self
    }

    /// Assigns `fault` to the renewal with this `number`, counted from zero.
    ///
    /// A renewal is one command for [several locks](crate::ClientBuilder::renewal_batch), and each
    /// attempt counts. A second fault for the same number replaces the first.
    #[must_use]
    pub fn on_renewal(mut self, number: u64, fault: Fault) -> Self {
        self.renewals.insert(number, fault);
        self
    }

    /// Returns whether no command meets a fault: no fault is assigned, and there is no seed.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self { loses_data: self.loses_data, ..Self::default() }
    }

    /// Returns the fault of command `number` of `origin`: the assigned fault, or else the fault
    /// drawn from the seed. `None` if the command meets no fault.
    pub(crate) fn get(&self, origin: Origin, number: u64) -> Option<Fault> {
        let given = match origin {
            Origin::Program => self.commands.get(&number),
            Origin::Renewal => self.renewals.get(&number),
            Origin::Background => None,
        };
        let drawn = || self.seed.and_then(|seed| draw(seed, origin, number, self.loses_data));
        given.copied().or_else(drawn)
    }
}

/// Draws a fault from `seed` for a quarter of the commands, and returns `None` for all other
/// commands. Equal arguments return equal faults. `loses_data` adds lost keys, failovers and clock
/// changes.
fn draw(seed: u64, origin: Origin, number: u64, loses_data: bool) -> Option<Fault> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let stream = rng.u64(..).wrapping_add(origin as u64);
    let mut rng = fastrand::Rng::with_seed(stream.wrapping_add(number.wrapping_mul(1 << 32)));
    if rng.u64(..ONE_OF) > 0 {
        return None;
    }
    // From 10 ms to 41 s in doubling steps, all equally likely: both shorter and longer than an
    // attempt and a lease.
    let time = Duration::from_millis(10 << rng.u32(..13));
    let kinds = if loses_data { 11 } else { 7 };
    Some(match rng.u32(..kinds) {
        0 => Fault::LoseRequest,
        1 => Fault::LoseReply,
        2 => Fault::LoseMessages,
        3 => Fault::Unreachable,
        4 => Fault::Refuse("LOADING Redis is loading the dataset in memory"),
        5 => Fault::Delay(time),
        6 => Fault::Pause(time),
        7 => Fault::LoseKey,
        8 => Fault::FailOver { lost_writes: rng.usize(1..=3) },
        9 => Fault::ClockForward(time),
        _ => Fault::ClockBack(time),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn seed_draws_all_faults_for_a_quarter_of_commands_repeatably() {
        let draw = |faults: &Faults, origin| -> Vec<Option<Fault>> {
            (0..4000).map(|number| faults.get(origin, number)).collect()
        };
        let faults = Faults::seeded(7).with_data_loss();
        let program = draw(&faults, Origin::Program);
        assert_eq!(program, draw(&faults.clone(), Origin::Program));
        assert_ne!(program, draw(&faults, Origin::Renewal));
        assert_ne!(program, draw(&Faults::seeded(8).with_data_loss(), Origin::Program));
        let kinds = |drawn: &[Option<Fault>]| -> usize {
            let kind = |fault: &Fault| std::mem::discriminant(fault);
            let texts = drawn.iter().flatten().map(|fault| format!("{:?}", kind(fault)));
            texts.collect::<BTreeSet<_>>().len()
        };
        assert_eq!(kinds(&program), 11);
        assert_eq!(kinds(&draw(&Faults::seeded(7), Origin::Program)), 7);
        let met = program.iter().flatten().count();
        assert!((800..1200).contains(&met), "{met} of 4000");
    }

    #[test]
    fn a_given_fault_replaces_a_drawn_one() {
        let faults = Faults::seeded(7).on_command(3, Fault::LoseKey);
        assert_eq!(faults.get(Origin::Program, 3), Some(Fault::LoseKey));
        assert!(Faults::new().with_data_loss().is_empty() && !faults.is_empty());
    }
}
