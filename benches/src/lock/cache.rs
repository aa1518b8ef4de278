//! Locks that stay with their client between two uses, beside plain locks, with the goals.

use std::fs;
use std::io::{BufRead, stdin};
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use wheellock::{Client, Lock};
use wheellock_fixture::{Server, wait_until};

use crate::harness::child::Child;
use crate::harness::clock::{now, sleep};
use crate::harness::figures::{at_permille, median, number};
use crate::harness::goals::{Row, goal_table, micros, millis};
use crate::harness::java::JavaProgram;
use crate::harness::plot::lines::{Line, draw};
use crate::harness::{Contender, measure_in_turn};
use crate::lock::hand_over::{LIMIT, SETTLED, spawn, subscribed};
use crate::lock::raw::RawPair;
use crate::lock::watched;

/// The longest time that a lease of 30 s allows.
const LONGEST: Duration = Duration::from_secs(10);
/// The time after which waiters without the setting have the lock.
const GIVEN: Duration = Duration::from_millis(100);
/// How many cached pairs are one sample: the clock takes as long as a few of the steps of a pair.
const PAIRS: u32 = 1000;
const THREADS: usize = 16;
const WINDOW: Duration = Duration::from_millis(500);
/// The processes run for as long before they are measured: the first to come may have cached the
/// lock for a second before it hears the other.
const PROCESS_SETTLE: Duration = Duration::from_millis(2500);
/// A process does not cache a name for a second after another process has asked for the name, so
/// the window has several of these seconds.
const PROCESS_WINDOW: Duration = Duration::from_secs(4);
/// What a process waits for that alternates with another.
const GO: &str = "go";
const STOP: &str = "stop";

/// For how long one client uses a lock before another one does, in seconds.
const TURNS: [f64; 6] = [0.1, 0.3, 1.0, 2.0, 4.0, 8.0];

/// All rows. A hundred rounds take three minutes. Draws the plot of the guide's page.
#[must_use]
pub fn cache_report(server: &Server, rounds: usize) -> String {
    let rows = [
        pairs(server, rounds),
        threads(server, rounds.div_ceil(20)),
        hand_overs(server, rounds),
        waiters(server, rounds.div_ceil(4)),
        processes(server, rounds.div_ceil(20)),
        turns(server),
    ];
    goal_table(rows.into_iter().flatten())
}

fn connect(server: &Server) -> Client {
    Client::connect(&server.url()).expect("the server is there")
}

fn use_once(lock: &Lock) {
    let guard = lock.lock().expect("the server is there");
    guard.unlock().expect("it was held");
}

/// Uses a lock until it is cached: before, its client has to hear others.
fn cache(client: &Client, lock: &Lock) {
    wait_until("it is cached", LIMIT, || {
        use_once(lock);
        client.stats().cache.cached > 0
    });
}

/// Row a: one thread that uses one lock.
fn pairs(server: &Server, rounds: usize) -> Vec<Row> {
    let client = connect(server);
    let lock = client.lock("bench:stay").with_cache(LONGEST);
    cache(&client, &lock);
    let mut raw = RawPair::of_lock(server.address(), "bench:floor");
    let mut contenders = [
        watched("plain", &server.url(), "bench:wheel"),
        Contender::timed("raw", move || {
            raw.acquire();
            raw.release();
        }),
        Contender::new("cached", move || {
            let start = now();
            for _ in 0..PAIRS {
                use_once(&lock);
            }
            (now() - start) / PAIRS
        }),
    ];
    let [plain, raw, cached] = measure_in_turn(&mut contenders, rounds, 100)
        .try_into()
        .expect("there are as many figures as contenders");
    let times = 1.0 / cached.ratio;
    vec![
        Row::new('a', "lock + unlock, two raw EVALSHA", micros(raw.median)),
        Row::new('a', "lock + unlock, plain", micros(plain.median)),
        Row::new('a', "lock + unlock, cached", micros(cached.median))
            .goal("at most 0.5 us", cached.median <= Duration::from_nanos(500)),
        Row::new('a', "plain / cached", format!("{} x", number(times)))
            .goal("at least 80 x", times >= 80.0),
    ]
}

/// Row b: threads of one client, each with a cached lock of its own.
fn threads(server: &Server, runs: usize) -> Vec<Row> {
    let client = connect(server);
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        alone.push(million_pairs(&client, 1));
        together.push(million_pairs(&client, THREADS));
    }
    let (alone, together) = (median(alone), median(together));
    let ratio = together / alone;
    let figure = |rate| format!("{} M/s", number(rate));
    let goal = "at least 3 M/s on two cores";
    vec![
        Row::new('b', "pairs a second, 1 thread", figure(alone)),
        Row::new('b', format!("pairs a second, {THREADS} threads"), figure(together))
            .goal(goal, together >= 3.0),
        Row::new('b', format!("{THREADS} threads / 1 thread"), format!("{ratio:.2} x")),
    ]
}

/// How many million pairs so many threads do in a second.
fn million_pairs(client: &Client, threads: usize) -> f64 {
    let (is_over, together) = (AtomicBool::new(false), Barrier::new(threads + 1));
    thread::scope(|scope| {
        let (is_over, together) = (&is_over, &together);
        let work = |thread: usize| {
            let lock = client.lock(&format!("bench:own:{thread}")).with_cache(LONGEST);
            move || {
                cache(client, &lock);
                together.wait();
                let mut batches: u32 = 0;
                while !is_over.load(Ordering::Relaxed) {
                    (0..PAIRS).for_each(|_| use_once(&lock));
                    batches += 1;
                }
                batches
            }
        };
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(work(thread))).collect();
        together.wait();
        let start = now();
        sleep(WINDOW);
        is_over.store(true, Ordering::Relaxed);
        let batches: Vec<u32> =
            threads.into_iter().map(|thread| thread.join().expect("no pair fails")).collect();
        // Until the last batch of all has ended.
        let took = now() - start;
        f64::from(batches.into_iter().sum::<u32>()) * f64::from(PAIRS) / took.as_secs_f64() / 1e6
    })
}

/// Row c: from the release, or from the request for a cached lock, until the other client has it.
fn hand_overs(server: &Server, rounds: usize) -> Vec<Row> {
    let mut contests = [
        HandOver::new(server, "plain", false, false),
        HandOver::new(server, "cached, in use", true, false),
        HandOver::new(server, "cached, idle: from the waiter's call", true, true),
    ];
    let mut samples: [Vec<Duration>; 3] = Default::default();
    for _ in 0..rounds {
        for (contest, samples) in contests.iter_mut().zip(&mut samples) {
            samples.extend((0..20).map(|_| contest.sample()));
        }
    }
    let mut rows = Vec::new();
    let mut plain = None;
    for (contest, mut samples) in contests.iter().zip(samples) {
        samples.sort_unstable();
        let [half, most] = [500, 990].map(|permille| {
            at_permille(&samples, permille).expect("there is at least one hand-over")
        });
        let [plain_half, plain_most] = *plain.get_or_insert([half, most]);
        let ratio = |own: Duration, plain: Duration| own.as_secs_f64() / plain.as_secs_f64();
        let title = |percent| format!("hand-over, {}: {percent} of 100", contest.title);
        let figure = |own, plain| format!("{}, {:.2} x", micros(own), ratio(own, plain));
        rows.push(Row::new('c', title(50), figure(half, plain_half)));
        let most_row = Row::new('c', title(99), figure(most, plain_most));
        rows.push(if contest.is_cached {
            most_row.goal("at most 1.5 x plain", ratio(most, plain_most) <= 1.5)
        } else {
            most_row
        });
    }
    rows
}

/// Two clients that hand locks over. Each hand-over has a name of its own: a name that another
/// client has asked for is not cached for a second.
struct HandOver {
    title: &'static str,
    is_cached: bool,
    /// The holder has used the lock before the waiter comes.
    is_idle: bool,
    holder: Client,
    waiter: Client,
    waits: crossbeam_channel::Sender<String>,
    owned: crossbeam_channel::Receiver<Instant>,
    observer: wheellock_fixture::RawConnection,
    names: usize,
}

impl HandOver {
    fn new(server: &Server, title: &'static str, is_cached: bool, is_idle: bool) -> Self {
        let (holder, waiter) = (connect(server), connect(server));
        let (waits, requests) = bounded::<String>(1);
        let (owns, owned) = bounded(1);
        for client in [&holder, &waiter] {
            if is_cached {
                // Then each hears the other.
                cache(client, &client.lock("bench:first").with_cache(GIVEN));
                use_once(&client.lock("bench:first"));
            }
        }
        let client = waiter.clone();
        spawn("bench-waiter", move || {
            for name in requests {
                let guard = lock_of(&client, &name, is_cached).lock().expect("it is released");
                owns.send(now()).ok();
                guard.unlock().expect("it was held");
                // Not cached from here on: nothing of it disturbs the next hand-over.
                use_once(&client.lock(&name));
            }
        });
        let observer = server.connection();
        Self { title, is_cached, is_idle, holder, waiter, waits, owned, observer, names: 0 }
    }

    fn sample(&mut self) -> Duration {
        self.names += 1;
        let name = format!("bench:{}{}:{}", self.is_cached, self.is_idle, self.names);
        let lock = lock_of(&self.holder, &name, self.is_cached);
        let start = if self.is_idle {
            use_once(&lock);
            assert_eq!(self.holder.stats().cache.cached, 1, "it is cached");
            sleep(SETTLED);
            let start = now();
            self.waits.send(name.clone()).expect("the waiter is there");
            start
        } else {
            let guard = lock.lock().expect("it is free");
            self.waits.send(name.clone()).expect("the waiter is there");
            wait_until("the waiter waits", LIMIT, || {
                self.waiter.stats().waiters == 1 && subscribed(&mut self.observer, &name)
            });
            sleep(SETTLED);
            let start = now();
            guard.unlock().expect("it was held");
            start
        };
        let took = self.owned.recv().expect("the waiter acquires") - start;
        wait_until("the waiter is done", LIMIT, || {
            self.observer.command(&["EXISTS", &name]).integer() == 0
        });
        took
    }
}

fn lock_of(client: &Client, name: &str, is_cached: bool) -> Lock {
    let lock = client.lock(name);
    if is_cached { lock.with_cache(LONGEST) } else { lock }
}

/// Row d: a waiter that cannot ask for a cached lock.
fn waiters(server: &Server, samples: usize) -> Vec<Row> {
    let mut rows = vec![waiter_rows("wheellock", &mut plain_waiter(server), server, samples)];
    match redisson_waiter(server) {
        Ok(mut redisson) => {
            rows.push(waiter_rows("Redisson", &mut redisson, server, samples));
        }
        Err(reason) => {
            rows.push(vec![Row::new('d', "Redisson", format!("not measured: {reason}"))]);
        }
    }
    rows.into_iter().flatten().collect()
}

/// Waits for a lock, releases it, and returns when it had the lock.
type Waiter = Box<dyn FnMut(&str) -> Instant>;

fn plain_waiter(server: &Server) -> Waiter {
    let client = connect(server);
    Box::new(move |name| {
        let guard = client.lock(name).lock().expect("it is released");
        let owned = now();
        guard.unlock().expect("it was held");
        owned
    })
}

/// A client of Redisson in a Java process, warmed up.
fn redisson_waiter(server: &Server) -> Result<Waiter, String> {
    let mut command = JavaProgram::build("redisson")?.command("RedissonWaiter", "512m");
    command.arg(server.address().to_string());
    let mut child = Child::start(&mut command).map_err(|error| error.to_string())?;
    child.line(Duration::from_secs(60)).map_err(|error| error.to_string())?;
    Ok(Box::new(move |name| {
        child.send(name).expect("the program reads");
        let (owned, _) = child.timed_line(LIMIT).expect("the program acquires");
        child.line(LIMIT).expect("the program releases");
        owned
    }))
}

/// The time from the release that leaves the lock with its client, until the waiter has the lock.
fn waiter_rows(title: &str, waiter: &mut Waiter, server: &Server, samples: usize) -> Vec<Row> {
    let client = connect(server);
    let lock = client.lock("bench:given").with_cache(GIVEN);
    cache(&client, &lock);
    let mut times = Vec::new();
    for _ in 0..samples {
        use_once(&client.lock("bench:given"));
        let guard = lock.lock().expect("it is free");
        let start = now();
        guard.unlock().expect("it was held");
        times.push(waiter("bench:given") - start);
    }
    times.sort_unstable();
    let [half, most] = [500, 990]
        .map(|permille| at_permille(&times, permille).expect("there is at least one wait"));
    let title =
        |percent| format!("{title} waits for a lock cached for {GIVEN:?}: {percent} of 100");
    vec![
        Row::new('d', title(50), millis(half)),
        Row::new('d', title(99), millis(most))
            .goal("at most 105 ms", most <= GIVEN + Duration::from_millis(5)),
    ]
}

/// Row e: two processes that use one lock without a pause.
fn processes(server: &Server, runs: usize) -> Vec<Row> {
    let (mut plain, mut cached, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut longest = [Duration::ZERO; 2];
    for _ in 0..runs {
        let [one, other] = [None, Some(LONGEST)].map(|time| TwoProcesses::run(server, time));
        plain.push(one.rate);
        cached.push(other.rate);
        ratios.push(other.rate / one.rate);
        longest = [longest[0].max(one.longest), longest[1].max(other.longest)];
    }
    let figure = |rates| format!("{:.0} /s", median(rates));
    let ratio = median(ratios);
    let what = |kind, what| format!("two processes on one {kind} lock: {what}");
    vec![
        Row::new('e', what("plain", "pairs a second"), figure(plain)),
        Row::new('e', what("plain", "the longest pair"), millis(longest[0])),
        Row::new(
            'e',
            what("cached", "pairs a second"),
            format!("{}, {ratio:.2} x", figure(cached)),
        )
        .goal("at least 0.9 x plain", ratio >= 0.9),
        Row::new('e', what("cached", "the longest pair"), millis(longest[1])),
    ]
}

/// What two processes have done together.
struct TwoProcesses {
    /// Pairs a second.
    rate: f64,
    longest: Duration,
}

impl TwoProcesses {
    fn run(server: &Server, time: Option<Duration>) -> Self {
        let program = std::env::current_exe().expect("this program is a file");
        let time = time.unwrap_or_default().as_millis().to_string();
        let mut children = [(); 2].map(|()| {
            let mut command = Command::new(&program);
            command.args([CACHE_PROCESS, &server.url(), &time]);
            let mut child = Child::start(&mut command).expect("the program starts");
            child.line(LIMIT).expect("the program connects");
            child
        });
        sleep(PROCESS_SETTLE);
        let start = now();
        for child in &mut children {
            child.send(GO).expect("the program reads");
        }
        sleep(PROCESS_WINDOW);
        for child in &mut children {
            child.send(STOP).expect("the program reads");
        }
        let took = now() - start;
        let mut outcome = Self { rate: 0.0, longest: Duration::ZERO };
        for child in &mut children {
            // The last pair of a process may wait until the other process has left.
            let line = child.line(LONGEST + LIMIT).expect("the program counts");
            let (count, longest) = line.split_once(' ').expect("there are two numbers");
            outcome.rate += count.parse::<f64>().expect("a number") / took.as_secs_f64();
            let longest = Duration::from_micros(longest.parse().expect("a number"));
            outcome.longest = outcome.longest.max(longest);
        }
        outcome
    }
}

/// Row f: two clients that use one lock for a while each.
fn turns(server: &Server) -> Vec<Row> {
    let subjects = [("plain", None), ("cached", Some(GIVEN))];
    let lines = subjects.map(|(name, time)| {
        let points = TURNS.map(|turn| (turn, turn_pairs(server, time, turn).as_secs_f64() * 1e6));
        Line { name: name.to_owned(), is_ours: time.is_some(), points: points.to_vec() }
    });
    let [plain, cached] = &lines;
    let rows = plain.points.iter().zip(&cached.points).map(|((turn, plain), (_, cached))| {
        let figure = format!("{} us and {} us", number(*plain), number(*cached));
        Row::new('f', format!("a pair, plain and cached, in turns of {turn} s"), figure)
    });
    let rows = rows.collect();
    let title = "lock + unlock, two clients in turns";
    let plot = draw(title, "us", "seconds of a turn", &lines).expect("each line has points");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock/docs/cache-turns.svg");
    fs::write(path, plot).expect("the folder can be written");
    rows
}

/// What a pair takes, on average, of two clients that use the lock for `turn` seconds each.
fn turn_pairs(server: &Server, time: Option<Duration>, turn: f64) -> Duration {
    let clients = [(); 2].map(|()| connect(server));
    let locks = clients.each_ref().map(|client| {
        let lock = client.lock("bench:turns");
        time.map_or(lock.clone(), |time| lock.with_cache(time))
    });
    let take_turns = |turn: Duration| {
        let mut pairs: u32 = 0;
        for lock in &locks {
            let end = now() + turn;
            while now() < end {
                use_once(lock);
                pairs = pairs.saturating_add(1);
            }
        }
        2 * turn / pairs.max(1)
    };
    // Before, each client hears the other one.
    take_turns(Duration::from_millis(100));
    take_turns(Duration::from_secs_f64(turn))
}

/// The word that starts the program as one of two processes.
pub const CACHE_PROCESS: &str = "cache-process";

/// One of two processes: uses a lock, and returns how often from the line `go` until the line
/// `stop`, and how long the longest pair took. The arguments are the server, and for how many
/// milliseconds the lock stays here.
#[expect(clippy::print_stdout, reason = "the report reads it")]
pub fn cache_process(arguments: &[String]) {
    let [url, time]: &[String; 2] = arguments.try_into().expect("a server and a time");
    let client = Client::connect(url).expect("the server is there");
    let time = Duration::from_millis(time.parse().expect("the time is a number"));
    let lock = client.lock("bench:both");
    let lock = if time.is_zero() { lock } else { lock.with_cache(time) };
    println!("ready");
    let (is_counting, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (count, longest) = thread::scope(|scope| {
        let work = scope.spawn(|| {
            let (mut count, mut longest, mut last): (u32, _, _) = (0, Duration::ZERO, now());
            while !is_over.load(Ordering::Relaxed) {
                use_once(&lock);
                let at = now();
                if is_counting.load(Ordering::Relaxed) {
                    longest = longest.max(at - last);
                    count += 1;
                }
                last = at;
            }
            (count, longest)
        });
        let mut line = String::new();
        // Without a report that writes, there is nothing to count.
        for flag in [&is_counting, &is_over] {
            stdin().lock().read_line(&mut line).ok();
            flag.store(true, Ordering::Relaxed);
        }
        work.join().expect("no pair fails")
    });
    println!("{count} {}", longest.as_micros());
}
