//! Which commands to a store in memory meet which faults. Pure: a fault follows from the number of
//! the command, the script and the seed.

use std::collections::BTreeMap;
use std::time::Duration;

/// What happens to one command of a client on a [`Memory`](crate::Memory).
///
/// The client reacts as it does on a network: it sends the command again, reports an error that
/// says whether the command may have run, or finds that it lost a lock. What takes time takes it on
/// the clock of the [`Memory`](crate::Memory), and moves a [`ManualClock`](crate::ManualClock).
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
    /// The connection breaks before the command has reached the server: it does not run, which the
    /// client cannot know.
    LoseRequest,
    /// The command runs, and the connection breaks before its reply arrives.
    LoseReply,
    /// The command runs, and the messages that it publishes are lost. Waiters poll.
    LoseMessages,
    /// No connection can be made: the command does not run, which the client knows.
    Unreachable,
    /// The server replies with this error and does not run the command. The first word is the code:
    /// `READONLY`, `LOADING` and others [are transient](crate::Error::Refused).
    Refuse(&'static str),
    /// The command runs, and its reply arrives that much later. If the client does not wait that
    /// long, it gets none, after the whole time of an attempt.
    Delay(Duration),
    /// The command runs, and this process stands still for that time, as by `SIGSTOP`. Then the
    /// reply arrives. On a clock that a program cannot move, only the calling thread stands still.
    Pause(Duration),
    /// The first key of the command is lost before it runs, as by an eviction: the key of the lock,
    /// of the semaphore, or of the first of the locks that are renewed.
    LoseKey,
    /// A replica takes over that has not got the last writes. The command runs there.
    ///
    /// This takes no time. So on a clock that stands still the next fencing token can equal one
    /// that was lost; a real takeover takes longer than the microsecond that tokens count.
    FailOver {
        /// How many commands that wrote are lost, at most all since the faults were set, and at
        /// most 16.
        lost_writes: usize,
    },
    /// The server's clock is set forward before the command runs: leases end earlier.
    ClockForward(Duration),
    /// The server's clock is set back before the command runs: leases end later.
    ClockBack(Duration),
}

/// Which commands on a [`Memory`](crate::Memory) meet which faults: given one by one, or drawn from
/// a seed.
///
/// Commands are numbered from zero, in the order in which they come to the
/// [`Memory`](crate::Memory); each attempt of a call is one. Those that the calls and guards of the
/// program send are counted apart from renewals, which a client's own thread sends, so a renewal
/// changes no number of the program's commands. What else such a thread sends meets only what a
/// seed draws. [`Client::ping`](crate::Client::ping) meets no fault.
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

/// Where a command comes from. Each counts its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A call or a guard of the program.
    Program,
    /// A renewal thread.
    Renewal,
    /// A renewal thread, for a command other than a renewal: a release that is sent again, a
    /// client's record.
    Background,
}

/// The most writes that a failover can lose.
pub(crate) const MAX_LOST_WRITES: usize = 16;

/// One in this number of commands meets a drawn fault.
const ONE_OF: u64 = 4;

impl Faults {
    /// No faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A quarter of all commands, drawn from `seed`, meets a fault of the network, a transient
    /// refusal, or a pause of the process of up to 41 s. The same seed draws the same faults.
    ///
    /// Under these two holders never both see [`is_held`](crate::LockGuard::is_held) true.
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

    /// Also draws what a server does that does not keep its keys: lost keys, failovers that lose
    /// writes, clocks that are set.
    ///
    /// Under these two holders can both see [`is_held`](crate::LockGuard::is_held) true. Only a
    /// resource that refuses old [fencing tokens](crate::FencedGuard::token) helps then. Without a
    /// seed it has no effect.
    #[must_use]
    pub fn with_data_loss(self) -> Self {
        Self { loses_data: true, ..self }
    }

    /// The program's command of this number, from zero, meets `fault`.
    #[must_use]
    pub fn on_command(mut self, number: u64, fault: Fault) -> Self {
        self.commands.insert(number, fault);
        self
    }

    /// The renewal of this number, from zero, meets `fault`. One renewal is one command for many
    /// locks; each attempt counts.
    #[must_use]
    pub fn on_renewal(mut self, number: u64, fault: Fault) -> Self {
        self.renewals.insert(number, fault);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        *self == Self { loses_data: self.loses_data, ..Self::default() }
    }

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

/// The fault that a seed draws for a command.
fn draw(seed: u64, origin: Origin, number: u64, loses_data: bool) -> Option<Fault> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let stream = rng.u64(..).wrapping_add(origin as u64);
    let mut rng = fastrand::Rng::with_seed(stream.wrapping_add(number.wrapping_mul(1 << 32)));
    if rng.u64(..ONE_OF) > 0 {
        return None;
    }
    // From 10 ms to 41 s, each doubling as often: shorter and longer than an attempt and a lease.
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
    fn a_seed_draws_every_fault_for_a_quarter_of_the_commands_and_the_same_each_time() {
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
