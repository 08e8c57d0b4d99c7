package fanout

import "time"

// pace says how many requests a client keeps outstanding. An adaptive one follows Little's
// law: one more than the number of chunks that are processed while an answer is coming.
type pace struct {
	window   int
	adaptive bool
	most     int

	born    time.Time
	asks    []time.Duration // when each request went that has not been answered
	head    int
	called  time.Duration    // Receive
	gave    time.Duration    // a chunk; 0: none
	service time.Duration    // of a chunk, smoothed
	answer  [2]time.Duration // the shortest time to an answer: of this epoch, and the one before; 0: none
	samples int
}

const (
	// paceEpoch is after how many awaited answers the shortest time is forgotten: some answers
	// include a wait for the producer.
	paceEpoch = 256
	// paceWaited: a Receive that took longer has waited for its answer.
	paceWaited = time.Microsecond
)

func newPace(o clientOptions) pace {
	p := pace{window: o.window}
	if o.adaptive {
		p.adaptive, p.most, p.window, p.born = true, o.window, 1, time.Now()
	}
	return p
}

// idle: Receive has been called.
func (p *pace) idle() {
	if !p.adaptive {
		return
	}
	p.called = time.Since(p.born)
	if p.gave > 0 {
		p.service += (p.called - p.gave - p.service) / 8
		p.gave = 0
	}
}

// asked: n requests have gone.
func (p *pace) asked(n int) {
	if !p.adaptive {
		return
	}
	if p.head > 0 && len(p.asks)+n > cap(p.asks) {
		p.asks, p.head = p.asks[:copy(p.asks, p.asks[p.head:])], 0
	}
	now := time.Since(p.born)
	for range n {
		p.asks = append(p.asks, now)
	}
}

// came: a request has been answered.
func (p *pace) came() {
	if !p.adaptive {
		return
	}
	p.gave = time.Since(p.born)
	if p.head == len(p.asks) {
		return
	}
	took := p.gave - p.asks[p.head]
	p.head++
	if p.gave-p.called > paceWaited {
		p.sample(took)
	}
	p.window = p.fit()
}

func (p *pace) sample(took time.Duration) {
	if p.samples++; p.samples%paceEpoch == 0 {
		p.answer[1], p.answer[0] = p.answer[0], 0
	}
	if p.answer[0] == 0 || took < p.answer[0] {
		p.answer[0] = took
	}
}

// fit returns the window that keeps the worker busy.
func (p *pace) fit() int {
	answer := p.answer[0]
	if a := p.answer[1]; a > 0 && (answer == 0 || a < answer) {
		answer = a
	}
	service := max(p.service, 1)
	return int(min(1+(answer+service-1)/service, time.Duration(p.most)))
}
