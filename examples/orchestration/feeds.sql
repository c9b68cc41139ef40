CREATE CHANGEFEED orders_copy
    FOR shop.public.orders
    INTO 'external://warehouse';
