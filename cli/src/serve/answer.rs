//! The answers to requests.

use std::time::Instant;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use serde::Serialize;
use wheellock::{Clock as _, SystemClock};

use super::access::{Access, Refusal};
use super::metrics;
use super::scanner::{Latest, Scanner};
use super::snapshot::millis;
use super::text::json;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Headers for browsers in each answer: the page loads only resources of this server, no other page
/// may show or use an answer, and nothing is stored.
const FOR_BROWSERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// The content of the site, and the access control.
pub(crate) struct Site {
    pub(crate) access: Access,
    pub(crate) scanner: Scanner,
}

/// The object of `/api` without the scan.
#[derive(Serialize)]
struct Head<'a> {
    /// The age of the last complete scan, if any.
    age_ms: Option<u64>,
    refresh_ms: u64,
    error: Option<&'a str>,
}

pub(crate) async fn answer(site: &Site, request: &Parts) -> Response<Full<Bytes>> {
    let mut response = match site.access.check(&request.headers) {
        Err(Refusal::Name) => plain(
            StatusCode::MISDIRECTED_REQUEST,
            "The Host of the request is not this machine. Use 127.0.0.1, [::1] or localhost.\n",
        ),
        Err(Refusal::Token) => {
            let mut response = plain(StatusCode::UNAUTHORIZED, "The token is missing or wrong.\n");
            let challenge =
                HeaderValue::from_static("Basic realm=\"wheellock\", charset=\"UTF-8\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
            response
        }
        Ok(()) if request.method != Method::GET => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "Only GET is served.\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            response
        }
        Ok(()) => page(site, request.uri.path()).await,
    };
    for (name, value) in FOR_BROWSERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn page(site: &Site, path: &str) -> Response<Full<Bytes>> {
    match path {
        "/" => with_type(StatusCode::OK, HTML, include_str!("page.html")),
        "/page.css" => with_type(StatusCode::OK, CSS, include_str!("page.css")),
        "/page.js" => with_type(StatusCode::OK, SCRIPT, include_str!("page.js")),
        "/api" => api(&site.scanner.latest().await, site, SystemClock.now()),
        "/metrics" => match current(&site.scanner.latest().await) {
            Ok(text) => with_type(StatusCode::OK, METRICS, text),
            Err(error) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        },
        _ => plain(StatusCode::NOT_FOUND, "There are /, /api and /metrics.\n"),
    }
}

/// Writes the metrics. An error if the last scan failed, or before the end of the first scan.
fn current(latest: &Latest) -> Result<String, &str> {
    match (&latest.failure, &latest.taken) {
        (Some(failure), _) => Err(failure),
        (None, Some(taken)) => Ok(metrics::text(&taken.snapshot, latest.scans, SystemClock.now())),
        (None, None) => Err(NOT_YET),
    }
}

const NOT_YET: &str = "the first scan of the server is not over yet";

/// Writes the last scan as JSON. After a failure, the answer has the scan's age and the error
/// instead, with status 503.
fn api(latest: &Latest, site: &Site, now: Instant) -> Response<Full<Bytes>> {
    let taken = latest.taken.as_ref();
    let age = taken.map(|taken| now.saturating_duration_since(taken.snapshot.ended));
    let error = latest.failure.as_deref().or(taken.is_none().then_some(NOT_YET));
    let refresh_ms = millis(site.scanner.refresh);
    let head = Head { age_ms: age.map(millis), refresh_ms, error };
    // The scan is serialized once for all requests, so the object is assembled here.
    let Ok(mut body) = json(&head) else {
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "The answer cannot be written.\n");
    };
    let status = match (taken, error) {
        (Some(taken), None) => {
            body.pop();
            body.extend_from_slice(b",\"scan\":");
            body.extend_from_slice(&taken.json);
            body.push(b'}');
            StatusCode::OK
        }
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    with_type(status, JSON, body)
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    with_type(status, TEXT, text)
}

fn with_type(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
