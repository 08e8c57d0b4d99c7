package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-hpc/sluice/internal/test/need"
)

// browser is a headless Chromium with one page, spoken to by the protocol of its
// developer tools over two pipes (--remote-debugging-pipe: messages of JSON, each ended
// by a NUL).
type browser struct {
	t       *testing.T
	to      *os.File
	from    *bufio.Reader
	last    int
	session string
	// What the page did: the addresses that it asked for, and what its script got wrong.
	asked  []string
	wrong  []string
	loaded int
}

// message is an answer, or an event.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// startBrowser starts one; the test ends where it does not answer in time.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	const program = "chromium"
	need.Program(t, program)
	inward, to, err := os.Pipe()
	require.NoError(t, err)
	from, outward, err := os.Pipe()
	require.NoError(t, err)
	dir := t.TempDir()
	// There is nothing at port 9 to send requests through: no page gets anything from
	// the network.
	cmd := exec.CommandContext(t.Context(), program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--proxy-server=127.0.0.1:9", "--user-data-dir="+dir, "--remote-debugging-pipe", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir)
	inOwnGroup(cmd)
	cmd.ExtraFiles = []*os.File{inward, outward}
	var told bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &told, 10*time.Second
	require.NoError(t, cmd.Start())
	require.NoError(t, inward.Close())
	require.NoError(t, outward.Close())
	b := &browser{t: t, to: to, from: bufio.NewReader(from)}
	hung := time.AfterFunc(bound, func() { _ = from.Close() })
	t.Cleanup(func() {
		hung.Stop()
		_ = to.Close() // it ends when its input is closed
		_ = cmd.Cancel()
		_ = cmd.Wait()
		_ = from.Close()
		if t.Failed() {
			t.Logf("chromium: %s", told.Bytes())
		}
	})
	var target struct {
		TargetID string `json:"targetId"`
	}
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct {
		SessionID string `json:"sessionId"`
	}
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call asks for something and waits for the answer.
func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	b.last++
	m := map[string]any{"id": b.last, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	text, err := json.Marshal(m)
	require.NoError(b.t, err)
	_, err = b.to.Write(append(text, 0))
	require.NoError(b.t, err)
	for {
		got := b.read()
		if got.ID != b.last {
			continue
		}
		require.Nil(b.t, got.Error, method)
		if result != nil {
			require.NoError(b.t, json.Unmarshal(got.Result, result))
		}
		return
	}
}

// read takes the next message, and notes what events tell.
func (b *browser) read() message {
	b.t.Helper()
	text, err := b.from.ReadBytes(0)
	require.NoError(b.t, err, "chromium does not answer")
	var m message
	require.NoError(b.t, json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m))
	switch m.Method {
	case "Page.loadEventFired":
		b.loaded++
	case "Runtime.exceptionThrown":
		b.wrong = append(b.wrong, string(m.Params))
	case "Log.entryAdded":
		var e struct{ Entry struct{ Level string } }
		require.NoError(b.t, json.Unmarshal(m.Params, &e))
		if e.Entry.Level == "error" || e.Entry.Level == "warning" {
			b.wrong = append(b.wrong, string(m.Params))
		}
	case "Network.requestWillBeSent":
		var e struct{ Request struct{ URL string } }
		require.NoError(b.t, json.Unmarshal(m.Params, &e))
		b.asked = append(b.asked, e.Request.URL)
	}
	return m
}

// open loads a page.
func (b *browser) open(url string) {
	b.t.Helper()
	before := b.loaded
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	for b.loaded == before {
		b.read()
	}
}

// eval evaluates an expression in the page into result.
func (b *browser) eval(expression string, result any) {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r)
	require.Empty(b.t, string(r.ExceptionDetails), expression)
	require.NoError(b.t, json.Unmarshal(r.Result.Value, result), expression)
}
