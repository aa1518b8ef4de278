//! The command line. The doc comments of the fields are the text of the help and the manual pages.

#![expect(clippy::doc_markdown, reason = "the help is plain text")]

use std::ffi::OsString;
#[cfg(feature = "serve")]
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Distributed locks on Redis and Valkey, for scripts and operators
///
/// A lock held by these commands excludes programs that use the crate wheellock or Redisson, and
/// vice versa.
#[derive(Parser)]
#[command(name = "wheellock", version, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Status(Status),
    List(List),
    Watch(Watch),
    Graph(Graph),
    Jobs(Jobs),
    #[cfg(feature = "serve")]
    Serve(Serve),
    Ask(Ask),
    Fence(FenceCommand),
    Unlock(Unlock),
    Bench(Bench),
    Doctor(Doctor),
    /// Print the completions for a shell
    ///
    /// For bash: wheellock completions bash >/etc/bash_completion.d/wheellock
    Completions {
        #[arg(value_name = "SHELL")]
        shell: Shell,
    },
    /// Print a manual page
    ///
    /// wheellock man >wheellock.1; wheellock man run >wheellock-run.1
    Man {
        /// Subcommand to document [default: wheellock]
        #[arg(value_name = "COMMAND")]
        command: Option<String>,
    },
}

#[derive(Args, Clone)]
pub(crate) struct Server {
    /// URL of the server [default: the environment variable REDIS_URL]
    ///
    /// The scheme is redis://, rediss:// (TLS), redis-sentinel://, redis-cluster:// or unix://. A
    /// URL with a password is refused here, because every user of the machine can read command
    /// lines: put the URL into REDIS_URL, or use --password-file.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Read the password from FILE at each connect; the URL names the user
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

/// Run a command while holding a lock
///
/// Waits for the lock NAME, runs CMD, and releases the lock when CMD ends. The exit code is CMD's
/// own; 128 + N if signal N ended CMD or arrived during the wait; 1 if the lock was not acquired;
/// 122 if the --slot was tried as often as allowed; 123 if the lock was lost; 125 if wheellock
/// itself failed; 126 if CMD cannot be executed; 127 if CMD is not found.
///
/// The environment of CMD has WHEELLOCK_NAME, WHEELLOCK_OWNER and, unless the lock is --shared, the
/// fencing token WHEELLOCK_TOKEN, for `wheellock fence`; with --slot also WHEELLOCK_SLOT and
/// WHEELLOCK_ATTEMPT. CMD is the leader of its own process group, and the group gets the signals
/// sent to wheellock. If the lock is lost, the group gets SIGTERM, and SIGKILL after --kill-after.
/// If wheellock is killed, the group is killed; the lock is free when its lease ends.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Wait for the lock for at most S seconds [default: no limit]
    ///
    /// The time includes connecting to the server.
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait for the lock
    ///
    /// The server has a second to answer, connecting included.
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Hold with a lease of S seconds, without renewal: the lock is lost if CMD takes longer
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) lease: Option<Duration>,

    /// Hold with a lease of S seconds, renewed until CMD ends [default: 30]
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with = "lease")]
    pub(crate) watchdog: Option<Duration>,

    /// Hold the lock for at least S seconds, even if CMD ends earlier
    ///
    /// wheellock still ends with CMD. The server retains the lock for the rest of the time.
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) min_hold: Option<Duration>,

    /// Grant the lock to waiters with --fair in the order of their arrival
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,

    /// Share the lock with all --shared holders, and exclude only --exclusive holders
    #[arg(long, group = "kind")]
    pub(crate) shared: bool,

    /// Exclude all --shared and --exclusive holders: the counterpart of --shared
    #[arg(long, group = "kind")]
    pub(crate) exclusive: bool,

    /// Let N commands run at once, each with a permit of the semaphore NAME
    #[arg(long, value_name = "N", group = "kind", value_parser = permits())]
    pub(crate) permits: Option<u32>,

    /// Run CMD once for each slot of the job NAME, on a single machine
    ///
    /// FORMAT is a format of date(1), such as '%F %H' for each hour. The slot is the time of the
    /// start, in UTC. If the slot has run elsewhere, CMD is not started, and the exit code is 0; if
    /// the slot runs elsewhere, wheellock waits. If CMD has failed or its machine has died, the
    /// next wheellock to begin the slot tries again; --retries limits the attempts of all machines
    /// together. A slot is remembered for a week; `wheellock jobs` lists the runs.
    #[arg(
        long,
        value_name = "FORMAT",
        conflicts_with_all = ["kind", "lease", "min_hold"]
    )]
    pub(crate) slot: Option<String>,

    /// Time zone of the slot, such as Europe/Berlin [default: UTC]
    ///
    /// Write the offset into the slot ('%F %H%:z'). Without the offset, the hour repeated in autumn
    /// runs only once.
    #[arg(long, value_name = "ZONE", requires = "slot")]
    pub(crate) slot_zone: Option<String>,

    /// Try a slot up to N more times if CMD fails
    #[arg(long, value_name = "N", default_value_t = 0, requires = "slot")]
    pub(crate) retries: u32,

    /// Wait S seconds before the next attempt
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds, requires = "slot")]
    pub(crate) retry_pause: Duration,

    /// Action if the server cannot be reached, or does not answer in time
    ///
    /// run: CMD runs without the lock, perhaps on several machines at once. The environment then
    /// has no WHEELLOCK_OWNER.
    #[arg(long, value_name = "ACTION", default_value = "fail")]
    pub(crate) on_unreachable: OnUnreachable,

    /// The exit code if the lock was not acquired
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::NOT_ACQUIRED)]
    pub(crate) on_conflict: u8,

    /// After a loss, kill the process group S seconds after SIGTERM, if CMD still runs
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) kill_after: Duration,

    /// Action when somebody asks for the lock, as `wheellock ask` does
    ///
    /// TERM: the process group gets SIGTERM once, and the lock is released when CMD ends. A permit
    /// cannot be asked for.
    #[arg(long, value_name = "ACTION", default_value = "TERM")]
    pub(crate) on_ask: OnAsk,

    /// Report only errors and losses
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// The lock's name, also the key on the server
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The command and arguments, run without a shell
    #[arg(value_name = "CMD", required = true, last = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

/// Action of `run` when somebody asks for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnAsk {
    #[value(name = "TERM")]
    Term,
    Ignore,
}

/// Action of `run` if the server cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnUnreachable {
    Fail,
    Run,
}

impl Run {
    /// Whether the lock is tried only once, without a wait.
    pub(crate) fn is_one_try(&self) -> bool {
        self.no_wait || self.wait == Some(Duration::ZERO)
    }
}

/// Show who holds a lock and for how long, and who waits
///
/// The exit code is 1 if the lock is not held. For a Redisson thread, only the owner is shown.
#[derive(Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    /// The lock's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// List the locks whose names match a pattern
///
/// The server is scanned a few hundred keys at a time (SCAN), so other clients are served
/// meanwhile. A number may be a semaphore, a latch, or anything else. Keys without read permission
/// are left out, and counted at the end.
#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print a JSON object on each line
    #[arg(long)]
    pub(crate) json: bool,

    /// Pattern as in Redis: * matches any text, ? any character, [a-c] any of a, b and c
    #[arg(value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: String,
}

/// Print a line for each change of a lock, until stopped
///
/// The first line is the present state. A release is shown at once; changes not reported by the
/// server, such as an acquire, within a second. The command ends on a signal, or when nobody reads
/// the output any more.
#[derive(Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print a JSON object on each line
    #[arg(long)]
    pub(crate) json: bool,

    /// The lock's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Show who waits for whom, and which threads are deadlocked
///
/// Shows the locks whose names match a pattern, and the threads that have waited for more than a
/// second, in programs with the crate wheellock. Further waiters are counted. The server is scanned
/// a few hundred keys at a time. The exit code is 3 if there is a deadlock.
#[derive(Args)]
pub(crate) struct Graph {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Output format: text, a Graphviz graph, a Mermaid flowchart, or a JSON object
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: Format,

    /// Print the graph repeatedly, until stopped or until nobody reads the output
    #[arg(long)]
    pub(crate) watch: bool,

    /// Pause of S seconds between two outputs
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds, requires = "watch")]
    pub(crate) interval: Duration,

    /// Pattern as in Redis: * matches any text, ? any character, [a-c] any of a, b and c
    #[arg(value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: String,
}

/// Output format of `graph`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Dot,
    Mermaid,
    Json,
}

/// List the last runs of a job, the latest first
///
/// For each slot, the list has the latest run: host, start, duration and outcome. `wheellock run
/// --slot` and programs with Job::run_once record runs. A run has `died` if its lock is gone
/// without a recorded outcome. Times are the server's. The exit code is 1 if no run is remembered.
#[derive(Args)]
pub(crate) struct Jobs {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print a JSON object on each line
    #[arg(long)]
    pub(crate) json: bool,

    /// Number of runs to list; the server remembers up to 100
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u16,

    /// The job's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Serve a page with all locks, and metrics for Prometheus
///
/// / is a page for a browser, /api has the same data as JSON, and /metrics is for Prometheus.
/// Nothing can be changed. The server is scanned on request, and not again within the time of
/// --refresh, for any number of requests. The program ends on a signal.
///
/// Anyone who can reach the address can read the names of all locks, unless there is a token.
#[cfg(feature = "serve")]
#[derive(Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Address and port to listen on; port 0 is any free port
    ///
    /// Any address but a loopback address (127.0.0.1, [::1]) needs a --token-file.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9419")]
    pub(crate) listen: SocketAddr,

    /// Answer only requests with the token in FILE, as a bearer token or as the password of any
    /// user
    ///
    /// The token has at least 16 visible ASCII characters, in a single line. The file is read at
    /// the start.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Show locks whose names match PATTERN, as in `wheellock list`
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: String,

    /// Scan the server no sooner than S seconds after the last scan has ended
    ///
    /// If the last scan took longer than S seconds, the pause is as long as the scan.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) refresh: Duration,

    /// Separator after the prefix of a name; metrics are grouped by prefix
    ///
    /// A name without TEXT has the empty prefix. With more than 100 prefixes, the 100 with the
    /// oldest holds are shown, and the sum of the rest as the prefix `other`.
    #[arg(long, value_name = "TEXT", default_value = ":", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) prefix_separator: String,
}

/// Ask the holders of a lock for a release
///
/// For a deploy, or for more urgent work. A notified holder ends its work, or goes on: `wheellock
/// run` sends SIGTERM to the command, unless started with --on-ask ignore. Nothing is forced, and
/// nothing is stored: holders that do not listen, such as Redisson's, are never notified.
///
/// The exit code is 1 if the lock is not held, or if the server knows of no listening holder; 125
/// if NAME is not a lock.
#[derive(Args)]
pub(crate) struct Ask {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Reason for the request, up to 1,000 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,

    /// The lock's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Refuse the writes of stale holders
///
/// For commands under `wheellock run`, whose environment has the fencing token WHEELLOCK_TOKEN: a
/// number that grows from holder to holder. A write with a token older than the newest written
/// token changes nothing, and the exit code is 123, as for a lost lock.
#[derive(Args)]
pub(crate) struct FenceCommand {
    #[command(subcommand)]
    pub(crate) what: Fence,
}

#[derive(Subcommand)]
pub(crate) enum Fence {
    File(FenceFile),
    Sql(FenceSql),
}

/// Replace a file with the standard input, unless the token is stale
///
/// Readers see either the old or the new file, never a part. The newest token is stored in the
/// folder PATH.fence. The content is held in memory until complete.
///
/// wheellock run report -- sh -c './report.sh >new && wheellock fence file report.csv <new'
#[derive(Args)]
pub(crate) struct FenceFile {
    /// The fencing token [default: the environment variable WHEELLOCK_TOKEN]
    #[arg(long, value_name = "N", env = "WHEELLOCK_TOKEN", value_parser = token())]
    pub(crate) token: u64,

    /// Wait for another writer of the file for at most S seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) wait: Duration,

    /// The file
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
}

/// Print an SQL transaction that a stale holder cannot commit
///
/// The statements are read from the standard input. A statement before them fails if the token is
/// stale, and the program stops there. Without a token nothing is printed. The statements must not
/// begin or end a transaction.
///
/// wheellock fence sql --create | psql shop
///
/// wheellock run orders -- sh -c 'wheellock fence sql orders <changes.sql | psql shop'
#[derive(Args)]
pub(crate) struct FenceSql {
    /// Print only the statement to create the table of the newest tokens
    #[arg(long, conflicts_with = "resource")]
    pub(crate) create: bool,

    /// The fencing token [default: the environment variable WHEELLOCK_TOKEN]
    #[arg(
        long,
        value_name = "N",
        env = "WHEELLOCK_TOKEN",
        required_unless_present = "create",
        value_parser = token()
    )]
    pub(crate) token: Option<u64>,

    /// The program to run the transaction
    #[arg(long, value_name = "PROGRAM", default_value = "psql")]
    pub(crate) program: SqlProgram,

    /// The resource's name, usually the lock's name
    #[arg(value_name = "RESOURCE", required_unless_present = "create")]
    pub(crate) resource: Option<String>,
}

/// A program to run SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlProgram {
    Psql,
    Sqlite3,
}

/// End the holds of a lock by force, for an operator
///
/// Ends a lock of any kind that wheellock status shows, and no other data. A holder that renews its
/// lease notices at the next renewal, within a third of the lease; until then another owner may
/// hold the lock as well. The exit code is 1 if the lock is not held, 125 if NAME is not a lock.
#[derive(Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Required: a lock held by another process can only be released by force
    #[arg(long, required = true)]
    pub(crate) force: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,

    /// The lock's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Measure the cost of a lock on this machine with this server
///
/// Uses a lock with a unique name, and leaves nothing behind.
#[derive(Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Take S seconds for each of the two measurements
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    pub(crate) seconds: Duration,
}

/// Check a server and its user for dangers to locks and causes of delay
///
/// Prints a line for each check: ok, warn, fail, or not checked if the server does not say; the
/// repair is on the line below. The command takes one to two seconds, changes no setting, and
/// leaves nothing behind but the refusals of commands in the server's ACL LOG.
///
/// The worst check decides the exit code: 0 if all checks are ok or not checked, 1 for warn, 2 for
/// fail, also if the server cannot be reached; 125 if the arguments are wrong.
#[derive(Args)]
pub(crate) struct Doctor {
    /// URL of the server, as with --redis
    #[arg(value_name = "URL", conflicts_with = "redis")]
    pub(crate) url: Option<String>,

    #[command(flatten)]
    pub(crate) server: Server,

    /// Prefix of your locks' names, if this user may use no other names
    ///
    /// The keys of the checks begin with PREFIX.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub(crate) prefix: String,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parser for a number of permits, from 1 to `i32::MAX`.
fn permits() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(i32::MAX))
}

/// Parser for a fencing token, from 1 to `i64::MAX`, which every resource can store.
fn token() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=i64::MAX.unsigned_abs())
}

/// Parses decimal seconds. An error for text that is no number, and for negative or too large
/// numbers.
fn seconds(text: &str) -> Result<Duration, &'static str> {
    text.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or("it is not a number of seconds")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn seconds_are_decimals() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(seconds("0"), Ok(Duration::ZERO));
        for wrong in ["-1", "nan", "inf", "1e300", "soon", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
