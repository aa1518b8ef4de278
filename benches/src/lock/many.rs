//! Thousands of locks in a few requests, beside the same locks one after the other, with the goals.

use std::process::Command;
use std::time::Duration;

use wheellock::{Client, LockGuard};
use wheellock_fixture::{Cluster, Server};

use crate::harness::child::Child;
use crate::harness::clock::now;
use crate::harness::figures::{median, number};
use crate::harness::goals::{Row, goal_table, millis};
use crate::harness::measured::to_line;
use crate::harness::process::resident_bytes;
use crate::harness::{Contender, measure_in_turn};

/// How many names are locked at once.
const NAMES: usize = 10_000;
/// How many are held while a guard's memory is measured.
const HELD: usize = 100_000;
/// How often the server's longest script is looked for.
const RUNS: usize = 20;
/// A process that holds locks ends within.
const LIMIT: Duration = Duration::from_secs(60);

/// All rows. Twenty rounds take a minute.
#[must_use]
pub fn many_report(server: &Server, rounds: usize) -> String {
    let cluster = Cluster::start(3, 0);
    let rows = [
        times('a', "one server", &server.url(), rounds),
        server_work(server),
        times('b', "a cluster of three masters", &cluster.url(), rounds),
        held(server),
    ];
    goal_table(rows.into_iter().flatten())
}

fn connect(url: &str) -> Client {
    Client::connect(url).expect("the server is there")
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("bench:many:{number}")).collect()
}

fn lock_each(client: &Client, names: &[String]) -> Vec<LockGuard> {
    names.iter().map(|name| client.lock(name).lock().expect("the lock is free")).collect()
}

/// Row a, and row b in a cluster: all names are locked and unlocked.
fn times(letter: char, place: &str, url: &str, rounds: usize) -> Vec<Row> {
    let (client, names) = (connect(url), names(NAMES));
    let many = client.lock_many(&names);
    let mut contenders = [
        Contender::timed("one after the other", move || {
            for guard in lock_each(&client, &names) {
                guard.unlock().expect("it was held");
            }
        }),
        Contender::timed("lock_many", move || {
            let guard = many.lock().expect("the locks are free");
            guard.unlock().expect("they were held");
        }),
    ];
    let [each, many] = measure_in_turn(&mut contenders, rounds, 1)
        .try_into()
        .expect("there are as many figures as contenders");
    let times = 1.0 / many.ratio;
    let what = format!("{NAMES} names, {place}: ");
    let ratio = Row::new(letter, format!("{what}ratio"), format!("{} x", number(times)));
    vec![
        Row::new(letter, format!("{what}lock + unlock, one after the other"), millis(each.median)),
        Row::new(letter, format!("{what}lock + unlock of `lock_many`"), millis(many.median)),
        if letter == 'a' { ratio.goal("at least 20 x", times >= 20.0) } else { ratio },
    ]
}

/// Row a too: what a server has to do for all names.
fn server_work(server: &Server) -> Vec<Row> {
    let client = connect(&server.url());
    let many = client.lock_many(&names(NAMES));
    // The scripts are known to the server from here on.
    drop(many.lock().expect("the locks are free"));
    let before = server.command_calls("evalsha");
    let guard = many.lock().expect("the locks are free");
    let requests = server.command_calls("evalsha") - before;
    drop(guard);
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    let longest = (0..RUNS).map(|_| {
        server.command(&["SLOWLOG", "RESET"]);
        drop(many.lock().expect("the locks are free"));
        longest_command(server)
    });
    let longest: Vec<f64> = longest.collect();
    let most = longest.iter().copied().fold(0.0, f64::max);
    let median = median(longest);
    server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "10000"]);
    vec![
        Row::new('a', "requests that lock them", requests.to_string())
            .goal("at most 10", requests <= 10),
        Row::new('a', format!("longest script, median of {RUNS} runs"), micros(median)),
        Row::new('a', format!("longest script, most of {RUNS} runs"), micros(most))
            .goal("at most 5 ms", most <= 5000.0),
    ]
}

fn micros(time: f64) -> String {
    format!("{time:.0} us")
}

/// How long the longest command since the last reset has blocked the server, in microseconds.
fn longest_command(server: &Server) -> f64 {
    let log = server.command(&["SLOWLOG", "GET", "1000"]);
    let longest =
        log.array().iter().filter_map(|entry| Some(entry.array().get(2)?.integer())).max();
    let longest = longest.and_then(|micros| u32::try_from(micros).ok());
    f64::from(longest.expect("the log has the scripts"))
}

/// Row c: what held locks cost in this process.
fn held(server: &Server) -> Vec<Row> {
    let program = std::env::current_exe().expect("the system names the program");
    let [each, many] = ["each", "many"].map(|how| {
        let mut command = Command::new(&program);
        command.args([HELD_PROCESS, &server.url(), how]);
        let mut child = Child::start(&mut command).expect("the program starts");
        let line = child.line(LIMIT).expect("the program holds the locks");
        let value = |name: &str| {
            let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
            let found = words.find_map(|(word, value)| (word == name).then_some(value));
            found.and_then(|value| value.parse::<f64>().ok()).expect("the line has the figure")
        };
        let figures = ["memory", "look"].map(value);
        drop(child);
        server.command(&["FLUSHALL"]);
        figures
    });
    let what = format!("{HELD} held names: ");
    let row = |what: &str, [each, many]: [f64; 2]| {
        let figure = format!("{each:.0} and {many:.0}, {:.2} x", many / each);
        Row::new('c', what, figure)
    };
    vec![
        row(&format!("{what}bytes of each, as 100,000 guards and as one"), [each[0], many[0]]),
        row(&format!("{what}ns of `is_held` for each"), [each[1], many[1]]),
    ]
}

/// The first argument of a process of row c.
pub const HELD_PROCESS: &str = "held-process";

/// Holds many locks and returns what they cost. The arguments are the server, and `each` for a guard
/// for each lock or `many` for one guard.
#[expect(clippy::print_stdout, reason = "the report reads it")]
pub fn held_process(arguments: &[String]) {
    let [url, how]: &[String; 2] = arguments.try_into().expect("a server and a way");
    let (client, names) = (connect(url), names(HELD));
    drop(client.lock("bench:first").lock().expect("the lock is free"));
    let before = resident_bytes();
    let look: Box<dyn Fn() -> bool> = if how == "each" {
        let guards = lock_each(&client, &names);
        Box::new(move || guards.iter().all(LockGuard::is_held))
    } else {
        let guard = client.lock_many(&names).lock().expect("the locks are free");
        Box::new(move || guard.is_held())
    };
    let memory = resident_bytes() - before;
    let start = now();
    assert!(look(), "all are held");
    let took = now() - start;
    let held = f64::from(u32::try_from(HELD).expect("it is a small number"));
    println!(
        "{}",
        to_line(vec![("memory", memory / held), ("look", took.as_secs_f64() * 1e9 / held)])
    );
}
