//! The rows: every operation that the library sends, and the public call that sends it.

mod cluster;
mod connections;
mod fair;
mod jobs;
mod locks;
mod numbers;
mod permits;
mod read_write;
mod sentinels;
mod several;

use std::time::Duration;

use wheellock::Error;

use crate::cell_run::{CellRun, Returned};
use crate::holding::RivalKind;
use crate::sends::Sends;
use crate::servers::{Endpoint, Kind};

/// A command timeout. A call takes twice as long. The last of its tries begins after 1130 ms, as
/// the next would begin too late: so it has time enough for an answer on a busy machine.
const TIMEOUT: Duration = Duration::from_millis(800);

/// Here the last begins after 630 ms. In the background, where a renewal that was kept for so long
/// is sent again before the lease ends; and in a cluster, where a call is over long before a node
/// serves that was started again.
const SHORT_TIMEOUT: Duration = Duration::from_millis(550);

/// One operation.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) family: &'static str,
    /// Its name in the table.
    pub(crate) name: &'static str,
    /// The call, for the docs.
    pub(crate) call: &'static str,
    pub(crate) sends: Sends,
    /// What stands before the call.
    pub(crate) prepare: fn(&CellRun<'_>) -> Result<Returned, Error>,
    pub(crate) act: fn(&CellRun<'_>) -> Result<Returned, Error>,
    /// Removes what was prepared and has no owner.
    pub(crate) finish: fn(&CellRun<'_>),
    /// What a rival tries to acquire.
    pub(crate) rival: Option<RivalKind>,
    /// The key that may hold something else.
    pub(crate) foreign: fn(&str) -> String,
    /// The keys that have no time to live, as in Redisson's layout.
    pub(crate) lasting: fn(&str) -> Vec<String>,
    /// What may stand under the name in the end: after a call that went well, and after another.
    pub(crate) number: Option<(&'static [&'static str], &'static [&'static str])>,
    /// How much longer than a call's patience it may take.
    pub(crate) longer: Duration,
    /// It is sent on a connection that is made for it.
    pub(crate) fresh_connection: bool,
    /// It is sent in the background: the call looks on.
    pub(crate) background: bool,
    /// How often it is sent when all is well; a larger number where that depends on the moment.
    pub(crate) requests: usize,
    /// What the same call sends before it.
    pub(crate) before: Option<Sends>,
    /// By what the command timeout of the client is multiplied.
    patience: u32,
    /// What the client has before it.
    pub(crate) kind: Kind,
    /// Where the fault strikes.
    pub(crate) endpoint: Endpoint,
}

impl Row {
    const fn new(
        (family, name, call): (&'static str, &'static str, &'static str),
        sends: Sends,
        act: fn(&CellRun<'_>) -> Result<Returned, Error>,
    ) -> Self {
        Self {
            family,
            name,
            call,
            sends,
            prepare: |_| Ok(Returned::Nothing),
            act,
            finish: |_| {},
            rival: None,
            foreign: str::to_owned,
            lasting: |_| Vec::new(),
            number: None,
            longer: Duration::ZERO,
            fresh_connection: false,
            background: false,
            requests: 1,
            before: None,
            patience: 1,
            kind: Kind::Alone,
            endpoint: Endpoint::Server,
        }
    }

    /// The same row for a fault after which a try is answered at once, unless the machine is busy:
    /// its tries have the time for that.
    pub(crate) fn patient(mut self) -> Self {
        // The others say how long a wait is, when a hold is lost, or when replicas do not answer.
        let has_own_time = self.background || !self.longer.is_zero();
        if !has_own_time && self.kind != Kind::WithReplica {
            self.patience = 4;
        }
        self
    }

    /// The command timeout of the client.
    pub(crate) fn timeout(&self) -> Duration {
        if self.kind == Kind::WithReplica {
            // A replica may have half of it, which a busy machine makes long enough.
            return Duration::from_millis(1200);
        }
        let is_short = self.background || self.kind == Kind::InCluster;
        (if is_short { SHORT_TIMEOUT } else { TIMEOUT }) * self.patience
    }

    const fn prepare(mut self, prepare: fn(&CellRun<'_>) -> Result<Returned, Error>) -> Self {
        self.prepare = prepare;
        self
    }

    const fn finish(mut self, finish: fn(&CellRun<'_>)) -> Self {
        self.finish = finish;
        self
    }

    const fn rival(mut self, rival: RivalKind) -> Self {
        self.rival = Some(rival);
        self
    }

    const fn foreign(mut self, foreign: fn(&str) -> String) -> Self {
        self.foreign = foreign;
        self
    }

    const fn lasting(mut self, lasting: fn(&str) -> Vec<String>) -> Self {
        self.lasting = lasting;
        self
    }

    const fn number(
        mut self,
        well: &'static [&'static str],
        otherwise: &'static [&'static str],
    ) -> Self {
        self.number = Some((well, otherwise));
        self
    }

    const fn longer(mut self, longer: Duration) -> Self {
        self.longer = longer;
        self
    }

    const fn on_a_fresh_connection(mut self) -> Self {
        self.fresh_connection = true;
        self
    }

    const fn requests(mut self, requests: usize) -> Self {
        self.requests = requests;
        self
    }

    const fn before(mut self, before: Sends) -> Self {
        self.before = Some(before);
        self
    }

    const fn with(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    const fn at_the_other_door(mut self) -> Self {
        self.endpoint = Endpoint::Other;
        self
    }

    const fn in_the_background(mut self) -> Self {
        self.background = true;
        self
    }
}

/// All rows, in the order of the table.
pub(crate) fn all() -> Vec<Row> {
    [
        connections::ROWS,
        locks::ROWS,
        fair::ROWS,
        read_write::ROWS,
        numbers::SEMAPHORES,
        permits::ROWS,
        numbers::LATCHES,
        several::ROWS,
        jobs::ROWS,
        sentinels::ROWS,
        cluster::ROWS,
    ]
    .concat()
}

/// A lock's hash that a program left which died.
fn stranger(run: &CellRun<'_>) {
    run.place.command(&["HSET", &run.name, "00000000-0000-4000-8000-000000000000:1", "1"]);
    run.place.command(&["PEXPIRE", &run.name, "60000"]);
}

fn delete(run: &CellRun<'_>) {
    run.place.command(&["DEL", &run.name]);
}

/// Releases what was taken last.
fn release(run: &CellRun<'_>) -> Result<Returned, Error> {
    run.release()
}

/// What a question says.
fn answered<T>(_answer: T) -> Returned {
    Returned::Done
}

/// What a call says that answers whether it did anything.
fn done_if(changed: bool) -> Returned {
    if changed { Returned::Done } else { Returned::Nothing }
}
