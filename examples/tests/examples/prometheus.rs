//! The example `prometheus`: each metric that the Grafana dashboard asks for is there and moves.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use wheellock_fixture::{Server, TestProcess, wait_until};

use crate::support::{PATIENCE, example};

const DASHBOARD: &str = include_str!("../../../lock/docs/grafana/wheellock.json");

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    text.match_indices("wheellock_")
        .map(|(at, _)| {
            let is_part = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
            text[at..].chars().take_while(|sign| is_part(*sign)).collect()
        })
        .collect()
}

fn scrape(address: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    body.to_owned()
}

/// The samples of each metric, as one text.
fn samples(scraped: &str) -> BTreeMap<String, String> {
    let mut samples: BTreeMap<String, String> = BTreeMap::new();
    for line in scraped.lines().filter(|line| line.starts_with("wheellock_")) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        samples.entry(name.to_owned()).or_default().push_str(line);
    }
    samples
}

#[test]
fn each_metric_of_the_dashboard_is_there_and_moves() {
    let server = Server::start();
    let mut process = TestProcess::spawn(&mut example("prometheus", &[server.url().as_str()]));
    let line = process.wait_for_line("metrics at http://", PATIENCE);
    let address = line.trim_start_matches("metrics at http://").trim_end_matches("/metrics");

    let asked_for = names(DASHBOARD);
    assert!(asked_for.len() > 10, "{asked_for:?}");
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut scrape_again = || {
        for (name, value) in samples(&scrape(address)) {
            seen.entry(name).or_default().insert(value);
        }
        let moves = |name: &String| seen.get(name).is_some_and(|values| values.len() > 1);
        asked_for.iter().filter(|name| !moves(name)).cloned().collect::<Vec<_>>()
    };
    // What moves while locks are fought over and renewed.
    let has_begun = |still: &[String]| !still.iter().any(|name| name.contains("renewals_total"));
    wait_until("renewals", PATIENCE, || has_begun(&scrape_again()));
    // The lock with a label has its own series, also by the time waited.
    let scraped = samples(&scrape(address));
    for name in ["wheellock_acquires_total", "wheellock_wait_seconds_bucket"] {
        assert!(scraped[name].contains("label=\"fought for\""), "{name}: {}", scraped[name]);
    }
    // Losses, twice.
    for _ in 0..2 {
        wait_until("it is held", PATIENCE, || {
            server.command(&["EXISTS", "example:held"]).integer() == 1
        });
        let lost = |scraped: &str| samples(scraped).get("wheellock_lost_total").cloned();
        let before = lost(&scrape(address));
        server.command(&["DEL", "example:held"]);
        wait_until("a loss", PATIENCE, || {
            scrape_again();
            lost(&scrape(address)) != before
        });
    }
    // What moves while the server does not answer, and afterwards.
    for _ in 0..2 {
        server.pause();
        wait_until("releases are queued", PATIENCE, || {
            scrape_again();
            samples(&scrape(address))
                .get("wheellock_queued_releases")
                .is_some_and(|line| !line.ends_with(" 0"))
        });
        server.resume();
        wait_until("no release is queued", PATIENCE, || {
            scrape_again();
            samples(&scrape(address))
                .get("wheellock_queued_releases")
                .is_some_and(|line| line.ends_with(" 0"))
        });
    }
    wait_until("every metric has moved", PATIENCE, || scrape_again().is_empty());
    let scraped = scrape(address);
    for name in ["wheellock_acquires_total", "wheellock_held", "wheellock_wait_seconds"] {
        assert!(scraped.contains(&format!("# HELP {name} ")), "{name} is not described");
    }
    let counts_contention = |line: &str| {
        line.starts_with("wheellock_acquires_total{") && line.contains("end=\"contended\"")
    };
    assert!(scraped.lines().any(|line| counts_contention(line) && !line.ends_with(" 0")));
}
