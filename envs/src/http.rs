//! Servers that tasks stand on: one request with a JSON body, one JSON answer.
//!
//! It knows HTTP and nothing of tasks. Plain `http://` only: the servers meant here run on this machine or in its network.

use serde_json::Value;
use std::time::Duration;

/// The longest answer that is read.
const MOST_BYTES: u64 = 64 << 20;

/// Posts `body` to `url` and reads the answer as JSON. `bearer` is sent as `Authorization: Bearer …`.
///
/// **Errors** in words that name the URL: nobody answers, not within `limit`, with a status other than 200 (and the start
/// of what it said), or with what is no JSON.
pub(crate) fn post(url: &str, body: &Value, bearer: Option<&str>, limit: Duration) -> Result<Value, String> {
    let config = ureq::Agent::config_builder().timeout_global(Some(limit)).http_status_as_error(false).proxy(None);
    let agent: ureq::Agent = config.build().into();
    let mut request = agent.post(url).content_type("application/json");
    if let Some(key) = bearer {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    let mut response = request.send(body.to_string()).map_err(|error| match error {
        ureq::Error::Timeout(_) => format!("{url} did not answer within {} s", limit.as_secs_f64()),
        other => format!("{url}: {other}"),
    })?;
    let text = response.body_mut().with_config().limit(MOST_BYTES).read_to_string();
    let text = text.map_err(|error| match error {
        ureq::Error::Timeout(_) => format!("{url} did not finish its answer within {} s", limit.as_secs_f64()),
        other => format!("{url}: its answer cannot be read: {other}"),
    })?;
    let start: String = text.chars().take(200).collect();
    match response.status().as_u16() {
        200 => {
            serde_json::from_str(&text).map_err(|error| format!("{url} answered what is no JSON ({error}): {start}"))
        }
        status => Err(format!("{url} answered with status {status}: {start}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A server that answers one request with `answer` and returns what it was asked.
    fn once(answer: &'static str) -> (String, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/ask", listener.local_addr().unwrap());
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            let mut buffer = [0; 4096];
            while !asked.ends_with('}') {
                let n = stream.read(&mut buffer).unwrap();
                asked.push_str(std::str::from_utf8(&buffer[..n]).unwrap());
            }
            stream.write_all(answer.as_bytes()).unwrap();
            asked
        });
        (url, served)
    }

    #[test]
    fn a_body_goes_out_and_an_answer_comes_back() {
        let (url, served) = once("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{\"b\": [2]}");
        let answer = post(&url, &json!({"a": 1}), Some("key"), Duration::from_secs(5));
        assert_eq!(answer, Ok(json!({"b": [2]})));
        let asked = served.join().unwrap();
        assert!(asked.starts_with("POST /ask HTTP/1.1\r\n") && asked.ends_with("\r\n\r\n{\"a\":1}"), "{asked}");
        assert!(asked.to_lowercase().contains("authorization: bearer key\r\n"), "{asked}");
    }

    #[test]
    fn what_goes_wrong_is_said_with_the_url() {
        let (url, served) = once("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy");
        let said = post(&url, &json!({}), None, Duration::from_secs(5)).unwrap_err();
        assert_eq!(said, format!("{url} answered with status 503: busy"));
        served.join().unwrap();
        let (url, served) = once("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbusy");
        assert!(post(&url, &json!({}), None, Duration::from_secs(5)).unwrap_err().contains("what is no JSON"));
        served.join().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", silent.local_addr().unwrap());
        let said = post(&url, &json!({}), None, Duration::from_millis(50)).unwrap_err();
        assert_eq!(said, format!("{url} did not answer within 0.05 s"));
        drop(silent);
        assert!(post(&url, &json!({}), None, Duration::from_secs(5)).unwrap_err().starts_with(&url));
    }
}
