//! The command line. What stands at the fields is the help and the manual page.

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
/// The locks are those of the crate wheellock and of Redisson: programs that use either exclude
/// these commands, and are excluded by them.
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
        /// The command whose page it is; without it, that of wheellock
        #[arg(value_name = "COMMAND")]
        command: Option<String>,
    },
}

#[derive(Args, Clone)]
pub(crate) struct Server {
    /// The server; without it, the one in the environment variable REDIS_URL
    ///
    /// redis://, rediss:// (TLS), redis-sentinel://, redis-cluster:// or unix://. A URL with a
    /// password is refused here, because every user of the machine can read command lines: put it
    /// into REDIS_URL, or use --password-file.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,

    /// Read the password from FILE, at each connect; the user is that of the URL
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

/// Run a command while holding a lock
///
/// Waits for the lock NAME, runs CMD, and releases the lock when CMD ends. The exit code is that of
/// CMD; 128 + N if signal N ended it or came while waiting; 1 if the lock was not acquired; 122 if
/// the --slot was tried as often as allowed; 123 if the lock was lost; 125 if wheellock itself
/// failed; 126 if CMD cannot be executed; 127 if it is not found.
///
/// CMD finds WHEELLOCK_NAME, WHEELLOCK_OWNER and, unless the lock is --shared, the fencing token
/// WHEELLOCK_TOKEN in its environment, for `wheellock fence`; with --slot also WHEELLOCK_SLOT and
/// WHEELLOCK_ATTEMPT. It is the leader of a
/// process group of its own, which gets all signals that wheellock gets. If the lock is lost, the
/// group gets SIGTERM, and SIGKILL after --kill-after. If wheellock is killed, the group is killed;
/// the lock is free when its lease ends.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Wait for the lock for S seconds at most; without it, there is no limit
    ///
    /// Connecting to the server is a part of the wait.
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait for the lock
    ///
    /// The server is waited for: for a second at most.
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Hold with a lease of S seconds that is not renewed: the lock is lost if CMD takes longer
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) lease: Option<Duration>,

    /// Hold with a lease of S seconds that is renewed until CMD ends [default: 30]
    #[arg(long, value_name = "S", value_parser = seconds, conflicts_with = "lease")]
    pub(crate) watchdog: Option<Duration>,

    /// Keep the lock for S seconds at least, even if CMD ends earlier
    ///
    /// wheellock ends with CMD all the same. The server keeps the lock for the rest of the time.
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub(crate) min_hold: Option<Duration>,

    /// Let all that wait with --fair have the lock in their order
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,

    /// Share the lock with others that use --shared; only --exclusive excludes them
    #[arg(long, group = "kind")]
    pub(crate) shared: bool,

    /// Exclude those with --shared and --exclusive: the counterpart of --shared
    #[arg(long, group = "kind")]
    pub(crate) exclusive: bool,

    /// Let N commands run at once, each with a permit of the semaphore NAME
    #[arg(long, value_name = "N", group = "kind", value_parser = permits())]
    pub(crate) permits: Option<u32>,

    /// Run CMD once for each slot of the job NAME, on one machine of all
    ///
    /// FORMAT is that of date(1), such as '%F %H' for each hour, and the time is that of the start,
    /// in UTC. A slot that has run elsewhere is left alone, and the exit code is 0; one that runs
    /// elsewhere is waited for. A slot whose CMD has failed or whose machine has died is tried again
    /// by whoever comes next, as often as --retries says, all machines together. It is remembered
    /// for a week; `wheellock jobs` lists the runs.
    #[arg(
        long,
        value_name = "FORMAT",
        conflicts_with_all = ["kind", "lease", "min_hold"]
    )]
    pub(crate) slot: Option<String>,

    /// The time zone of the slot, such as Europe/Berlin
    ///
    /// Write the offset into the slot ('%F %H%:z'), or the hour that comes twice in autumn runs
    /// once.
    #[arg(long, value_name = "ZONE", requires = "slot")]
    pub(crate) slot_zone: Option<String>,

    /// Try a slot whose CMD has failed N times more
    #[arg(long, value_name = "N", default_value_t = 0, requires = "slot")]
    pub(crate) retries: u32,

    /// Wait for S seconds before the next attempt
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds, requires = "slot")]
    pub(crate) retry_pause: Duration,

    /// What to do if the server cannot be reached, or does not answer in time
    ///
    /// run: CMD runs without the lock, perhaps on several machines at once. Its environment has no
    /// WHEELLOCK_OWNER then.
    #[arg(long, value_name = "ACTION", default_value = "fail")]
    pub(crate) on_unreachable: OnUnreachable,

    /// The exit code if the lock was not acquired
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::NOT_ACQUIRED)]
    pub(crate) on_conflict: u8,

    /// After a loss, kill what SIGTERM has not ended within S seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) kill_after: Duration,

    /// What to do when somebody asks for the lock, as `wheellock ask` does
    ///
    /// TERM: the group gets SIGTERM once, and the lock is released when CMD ends. Nobody asks for a
    /// permit.
    #[arg(long, value_name = "ACTION", default_value = "TERM")]
    pub(crate) on_ask: OnAsk,

    /// Report only errors and losses
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// The lock's name, which is its key on the server
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The command and its arguments; there is no shell
    #[arg(value_name = "CMD", required = true, last = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

/// What `run` does when somebody asks for its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnAsk {
    #[value(name = "TERM")]
    Term,
    Ignore,
}

/// What `run` does without a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnUnreachable {
    Fail,
    Run,
}

impl Run {
    /// Whether it asks for the lock once.
    pub(crate) fn is_one_try(&self) -> bool {
        self.no_wait || self.wait == Some(Duration::ZERO)
    }
}

/// Show who holds a lock, for how long, and who waits for it
///
/// The exit code is 1 if the lock is not held. A Redisson thread is shown with its owner only.
#[derive(Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print an object of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// The lock's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// List the locks whose names match a pattern
///
/// The server is asked for a few hundred keys at a time (SCAN), so it serves others meanwhile. A
/// number may be a semaphore, a latch, or anything else. Keys that the user may not read are left
/// out, and counted at the end.
#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print an object of JSON on each line
    #[arg(long)]
    pub(crate) json: bool,

    /// As in Redis: * stands for any text, ? for any sign, [a-c] for one of them
    #[arg(value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: String,
}

/// Print a line for each change of a lock, until it is ended
///
/// The first line is the present state. A release is shown at once; what the server does not
/// report, such as an acquire, within a second. It ends with a signal, or when nobody reads its
/// output any more.
#[derive(Args)]
pub(crate) struct Watch {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print an object of JSON on each line
    #[arg(long)]
    pub(crate) json: bool,

    /// The lock's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Show who waits for whom, and which threads wait for each other
///
/// It shows the locks whose names match a pattern, and the threads that have waited for more than a
/// second, of programs with the crate wheellock. Other waiters are counted. The keys of the server
/// are looked at a few hundred at a time. The exit code is 3 if threads wait for each other.
#[derive(Args)]
pub(crate) struct Graph {
    #[command(flatten)]
    pub(crate) server: Server,

    /// What to print: text, or a graph of Graphviz, a flowchart of Mermaid, or an object of JSON
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: Format,

    /// Print it again and again, until it is ended or nobody reads the output
    #[arg(long)]
    pub(crate) watch: bool,

    /// The pause between two times
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds, requires = "watch")]
    pub(crate) interval: Duration,

    /// As in Redis: * stands for any text, ? for any sign, [a-c] for one of them
    #[arg(value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: String,
}

/// What `graph` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Dot,
    Mermaid,
    Json,
}

/// List the last runs of a job, the latest first
///
/// Of each slot its latest run: where, when and how it ended. `wheellock run --slot` and programs
/// with Job::run_once record them. A run has `died` if its lock is gone and nobody said how it
/// ended. The times are those of the server. The exit code is 1 if no run is remembered.
#[derive(Args)]
pub(crate) struct Jobs {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Print an object of JSON on each line
    #[arg(long)]
    pub(crate) json: bool,

    /// How many to list; the server remembers up to 100
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: u16,

    /// The job's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Serve a page with all locks, and metrics for Prometheus
///
/// / is a page for a browser, /api has the same as JSON, and /metrics is for Prometheus. Nothing can be
/// changed. The server is scanned when somebody asks, and not again within the time of --refresh,
/// however many ask. It ends with a signal.
///
/// Who may reach the address may read the names of all locks, unless there is a token.
#[cfg(feature = "serve")]
#[derive(Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) server: Server,

    /// The address and port to listen on; port 0 is any free port
    ///
    /// Another address than one of this machine alone (127.0.0.1, [::1]) needs a --token-file.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9419")]
    pub(crate) listen: SocketAddr,

    /// Answer only requests with the token in FILE: as a bearer token, or as a password of any user
    ///
    /// At least 16 visible signs of ASCII in one line. The file is read at the start.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Show locks whose names match PATTERN, as in `wheellock list`
    #[arg(long, value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: String,

    /// Scan the server no sooner than S seconds after the last scan has ended
    ///
    /// After a scan that took longer than that, the server is left alone for as long as the scan took.
    #[arg(long, value_name = "S", default_value = "5", value_parser = seconds)]
    pub(crate) refresh: Duration,

    /// What ends the prefix of a name, by which the metrics are grouped
    ///
    /// A name without TEXT has the empty prefix. With more than 100 prefixes those with the oldest
    /// holds are shown, and the others as the prefix `other`.
    #[arg(long, value_name = "TEXT", default_value = ":", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) prefix_separator: String,
}

/// Ask the holders of a lock to let it go
///
/// For a deploy, or for work that is more urgent. A holder learns of it and ends its work, or goes on:
/// `wheellock run` sends SIGTERM to its command, unless it was started with --on-ask ignore. Nothing is
/// forced, and nothing is stored: holders that do not listen, such as Redisson's, never learn of it.
///
/// The exit code is 1 if the lock is not held, or if the server knows no holder that listens; 125 if
/// NAME is not a lock.
#[derive(Args)]
pub(crate) struct Ask {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Why, for the holders: up to 1,000 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) reason: String,

    /// The lock's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Refuse the writes of a holder that has lost its lock
///
/// For commands under `wheellock run`, which gives them the fencing token WHEELLOCK_TOKEN: a number
/// that grows from holder to holder. A write with an older token than the newest one that was written
/// changes nothing, and the exit code is 123, as of a lost lock.
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

/// Replace a file by the standard input, unless the token is stale
///
/// Readers see the old file or the new one, never a part. The newest token stands in the folder
/// PATH.fence. The content is kept in memory until it is complete.
///
/// wheellock run report -- sh -c './report.sh >new && wheellock fence file report.csv <new'
#[derive(Args)]
pub(crate) struct FenceFile {
    /// The fencing token; without it, the one in the environment variable WHEELLOCK_TOKEN
    #[arg(long, value_name = "N", env = "WHEELLOCK_TOKEN", value_parser = token())]
    pub(crate) token: u64,

    /// Wait for another writer of the file for S seconds at most
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub(crate) wait: Duration,

    /// The file
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
}

/// Print a transaction of SQL that a stale holder cannot commit
///
/// The statements come from the standard input. Before them stands one that fails if the token is stale,
/// and the program stops there. Without a token nothing is printed. The statements must not begin or end
/// a transaction.
///
/// wheellock fence sql --create | psql shop
///
/// wheellock run orders -- sh -c 'wheellock fence sql orders <changes.sql | psql shop'
#[derive(Args)]
pub(crate) struct FenceSql {
    /// Print the statement that makes the table of the newest tokens, and nothing else
    #[arg(long, conflicts_with = "resource")]
    pub(crate) create: bool,

    /// The fencing token; without it, the one in the environment variable WHEELLOCK_TOKEN
    #[arg(
        long,
        value_name = "N",
        env = "WHEELLOCK_TOKEN",
        required_unless_present = "create",
        value_parser = token()
    )]
    pub(crate) token: Option<u64>,

    /// The program that reads the transaction
    #[arg(long, value_name = "PROGRAM", default_value = "psql")]
    pub(crate) program: SqlProgram,

    /// The name of the resource, mostly the name of the lock
    #[arg(value_name = "RESOURCE", required_unless_present = "create")]
    pub(crate) resource: Option<String>,
}

/// A program that reads SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SqlProgram {
    Psql,
    Sqlite3,
}

/// End the holds of a lock by force, for an operator
///
/// It ends a lock of any kind that wheellock status shows, and no other data. A holder that renews
/// learns of it at its next renewal, that is, within a third of its lease; until then another may
/// hold the lock as well. The exit code is 1 if the lock is not held, 125 if NAME is not a lock.
#[derive(Args)]
pub(crate) struct Unlock {
    #[command(flatten)]
    pub(crate) server: Server,

    /// Required: there is no other way to release a lock that another process holds
    #[arg(long, required = true)]
    pub(crate) force: bool,

    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,

    /// The lock's name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Measure what a lock costs on this machine with this server
///
/// It uses a lock of its own, whose name nobody else has, and leaves nothing behind.
#[derive(Args)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) server: Server,

    /// How long each of the two measurements takes
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    pub(crate) seconds: Duration,
}

/// Check a server and its user for what endangers locks or slows them down
///
/// One line for each check: ok, warn, fail, or not checked if the server does not say; below a line
/// is what to do. The command takes one to two seconds, changes no setting, and leaves nothing
/// behind but the refusals of commands in the server's ACL LOG.
///
/// The worst check decides the exit code: 0 if all checks are ok or not checked, 1 for warn, 2 for
/// fail, also if the server cannot be reached; 125 if the arguments are wrong.
#[derive(Args)]
pub(crate) struct Doctor {
    /// The server, as with --redis
    #[arg(value_name = "URL", conflicts_with = "redis")]
    pub(crate) url: Option<String>,

    #[command(flatten)]
    pub(crate) server: Server,

    /// How the names of your locks begin, if this user may use no other names
    ///
    /// The keys that are used for the checks begin with it.
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub(crate) prefix: String,

    /// Print an object of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a semaphore may have.
fn permits() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(i32::MAX))
}

/// A fencing token: what every resource can store.
fn token() -> clap::builder::RangedU64ValueParser<u64> {
    clap::value_parser!(u64).range(1..=i64::MAX.unsigned_abs())
}

/// Seconds as a decimal. Negative, too large and other text is refused.
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
