package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-hpc/sluice/verbs"
	_ "github.com/sluice-hpc/sluice/verbs/all"
)

// open opens the best device there is, with a protection domain and a completion
// queue.
func open() (ctx *verbs.Context, pd *verbs.PD, cq *verbs.CQ, err error) {
	devices, err := verbs.Devices()
	if len(devices) == 0 {
		return nil, nil, nil, errors.Join(verbs.ErrNoDevice, err)
	}
	// A program that does not trust its network sets Secret instead.
	if ctx, err = devices[0].Open(verbs.Config{Insecure: true}); err != nil {
		return nil, nil, nil, err
	}
	if pd, err = ctx.AllocPD(); err == nil {
		cq, err = ctx.CreateCQ(16, nil)
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, ctx.Close())
	}
	return ctx, pd, cq, nil
}

// pair makes two queue pairs that are connected with each other.
func pair(pd *verbs.PD, cq *verbs.CQ) (a, b *verbs.QP, err error) {
	init := verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if a, err = pd.CreateQP(init); err != nil {
		return nil, nil, err
	}
	if b, err = pd.CreateQP(init); err != nil {
		return nil, nil, err
	}
	if err = connect(a, b); err == nil {
		err = connect(b, a)
	}
	return a, b, err
}

// connect connects a with b. In two processes, each sends the bytes of its
// endpoint to the other by whatever means they have.
func connect(a, b *verbs.QP) error {
	endpoint, err := b.Endpoint()
	if err != nil {
		return err
	}
	wire, err := endpoint.MarshalBinary()
	if err != nil {
		return err
	}
	remote, err := verbs.ParseEndpoint(wire)
	if err != nil {
		return err
	}
	return a.Connect(remote, verbs.ConnectAttr{})
}

// next waits for a completion.
func next(cq *verbs.CQ) (verbs.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var wcs [1]verbs.WC
	_, err := cq.Wait(ctx, wcs[:])
	return wcs[0], err
}

func message() error {
	vctx, pd, cq, err := open()
	if err != nil {
		return err
	}
	defer vctx.Close() // closes all that is made from it
	a, b, err := pair(pd, cq)
	if err != nil {
		return err
	}
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	text := "through the gate"
	copy(mr.Bytes(), text)
	if _, err := b.PostRecv([]verbs.RecvWR{{WRID: 1, SGList: []verbs.SGE{mr.SGE(1024, 1024)}}}); err != nil {
		return err
	}
	if _, err := a.PostSend([]verbs.SendWR{{WRID: 2, Opcode: verbs.OpSend, SGList: []verbs.SGE{mr.SGE(0, len(text))}}}); err != nil {
		return err
	}
	wc, err := next(cq)
	if err == nil {
		err = wc.Err()
	}
	fmt.Printf("%v %d: %q\n", wc.Opcode, wc.WRID, mr.Bytes()[1024:][:wc.ByteLen])
	return err
}

// A message from one queue pair to another.
func Example() {
	if err := message(); err != nil {
		fmt.Println(err)
	}
	// Output: RECV 1: "through the gate"
}

func badKey() error {
	vctx, pd, cq, err := open()
	if err != nil {
		return err
	}
	defer vctx.Close()
	a, _, err := pair(pd, cq)
	if err != nil {
		return err
	}
	mr, err := pd.AllocMR(64, verbs.AccessAll)
	if err != nil {
		return err
	}
	bad := verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGList: []verbs.SGE{mr.SGE(0, 8)}, RKey: ^mr.RKey(), RemoteAddr: mr.Addr()}
	if _, err := a.PostSend([]verbs.SendWR{bad}); err != nil {
		return err
	}
	wc, err := next(cq)
	fmt.Println(errors.Is(wc.Err(), verbs.WCRemAccessErr), wc.Status, a.State())
	return err
}

// A write into the peer's memory with a key that is not valid: the completion
// says so, and the queue pair is in ERR.
func ExampleWC_Err() {
	if err := badKey(); err != nil {
		fmt.Println(err)
	}
	// Output: true remote access error ERR
}

// What travels out of band, and what is refused.
func ExampleParseEndpoint() {
	e := verbs.Endpoint{Provider: "tcp", LinkLayer: verbs.LinkLayerEthernet, ActiveMTU: verbs.MTU4096, LID: 40000, QPNum: 17}
	wire, err := e.MarshalBinary()
	if err != nil {
		fmt.Println(err)
		return
	}
	back, err := verbs.ParseEndpoint(wire)
	fmt.Println(len(wire), back == e, err)

	wire[20] ^= 1
	_, err = verbs.ParseEndpoint(wire)
	fmt.Println(errors.Is(err, verbs.ErrEndpoint))
	// Output:
	// 56 true <nil>
	// true
}
